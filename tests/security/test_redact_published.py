"""Formats that services publish, and commands that take a secret: how many of them redaction finds."""

from __future__ import annotations

from bridge.opencode.redact import Redactor
from tests.security.drawn import drawn

U = "<h8>-<h4>-<h4>-<h4>-<h12>"
FORMATS = (
    *("1//0<s60>", "EAAA<s60>", "pat<a14>.<h64>", "s.<a24>", "hvs.<s90>", "napi_<l64>", "ATBB<a32>", "sl.<s135>"),
    *("CFPAT-<s43>", f"api-{U}", f"sdk-{U}", "00<s40>", "dp.pt.<a43>", "dt0c01.<u24>.<u64>", "EZAK<a54>"),
    *("fio-u-<s64>", "duffel_test_<s43>", "ico-<a32>", "pnu_<l36>", "rdme_<l70>", "xkeysib-<h64>-<l16>"),
    *("shippo_live_<h40>", "tfp_<s59>", "LTAI<a20>", "p8e-<l32>", "CLOJARS_<l60>", f"pat-na1-{U}", "s-s4t2ud-<h64>"),
    *("<a6>_<a29>_mmk", "API-<u26>", "sha256~<s43>", "tk-us-<s48>", "sm_pat_<a16>", "squ_<h40>", "sgp_<h16>_<h40>"),
    *("AQVN<s36>", "pat.<s22>.<h24>.<a20>", "bkua_<h40>", f"access-production-{U}", "rzp_live_<a14>", "EAAC<a160>"),
)
PLACES = ("use {} now", 'x = "{}"', '{{"a":"{}"}}', "curl -H 'X: {}' h", "A={}\n")
VALUES = ("Zk39vLmTq2", "hunter2hunter", "s3cr3t-Pa55")
COMMANDS = (
    *('<add key="ApiKey" value="{}" />', 'key="ApiKey" value={}', "aws configure set aws_secret_access_key {}"),
    *("gh secret set NAME --body {}", "openssl enc -aes-256-cbc -k {} -in a", "lftp -u ada,{} ftp.test"),
    *("sqlplus ada/{}@db", "SET PASSWORD FOR 'a'@'h' = '{}'", "wpa_passphrase home {}"),
    *("nmcli dev wifi connect home password {}", "my api key: {}", "::add-mask::{}", "circleci env store NAME {}"),
    *("x11vnc -passwd {} -forever", "mosquitto_pub -h h -u a -P {} -t x", "influx -username a -password {}"),
    *("rclone config create r sftp user a pass {}", "ssh-keygen -t rsa -N {} -f k", "keytool -genkey -storepass {}"),
    *("echo {} | passwd --stdin a", "echo {} | passwd", "consul kv put app/secret {}", "etcdctl --user root:{} get x"),
    *("kubectl create secret generic x --from-literal=pw={}", "curl -H 'Cookie: sid={}' h && curl -b 'a=bcdefg1' h"),
    *("curl -b 'a=bcdefgh1' h; curl -b 'sid={}' h", "gpg --batch --passphrase {} -d f", "wget --http-password={} h"),
    *("unrar x -p{} a.rar", "ipmitool -H h -U a -P {} power", "xfreerdp /u:a /p:{} /v:h"),
    *("pulumi config set --secret dbPassword {}", "fly secrets set DB_PASSWORD={}", "heroku config:set API_KEY={}"),
    *("ansible-playbook -e ansible_password={} p.yml", "mount -t cifs -o username=a,password={} //h/s /m"),
    *("vault kv put secret/app password={}", "psexec -u a -p {} cmd", "doctl auth init --access-token {}"),
    *("pdftk a.pdf output b.pdf user_pw {}", "mysqladmin -u root password {}", "git config --global user.token {}"),
    *("terraform apply -var db_password={}", "docker build --build-arg NPM_TOKEN={} .", "the client secret is {}"),
    *("helm install x --set auth.password={}", "snmpget -v3 -u a -A {} h", "az login --service-principal -u a -p {}"),
)


def test_nearly_all_of_them_are_found() -> None:
    redactor = Redactor()
    cases = [(place.format(secret), secret) for form in FORMATS for place in PLACES for secret in [drawn(form, 3)]]
    cases += [(command.format(value), value) for command in COMMANDS for value in VALUES]
    left = [text for text, secret in cases if secret in str(redactor.clean({"text": text})["text"])]
    assert len(left) <= 0.03 * len(cases), left
