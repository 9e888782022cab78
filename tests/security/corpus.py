"""Made-up secrets under telling names, in every place where an agent meets them.

A case is a text and the secret that must not remain in it. ``leaks`` returns
the cases that keep the secret or its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from bridge.opencode.redact import Redactor

VALUES: dict[str, str] = {
    "a word": "correcthorsebattery",
    "a short word": "letmein",
    "a short one": "x7q!",
    "with a digit": "hunter2hunter",
    "random": "Q7zk3PvLm9TtYw2RbN5d",
    "hexadecimal": "9f86d081884c7d659a2feaa0c55ad015",
    "a tail after (": "Zk3(tailpart",
    "a tail after $": "Zk3$tailpart",
    "a tail after ;": "Zk3;tailpart",
    "a tail after ,": "Zk3,tailpart",
    "a tail after @": "Zk3@tailpart",
    "a tail after )": "Zk3)tailpart",
}
"""A quote within a secret has cases of its own, as places quote it differently."""

CAPITALS = (
    *("DB_PASS", "SMTP_PASS", "SECRET_KEY_BASE", "DB_PASSWORD", "PASSWORD", "MYSQL_PWD", "API_KEY", "STRIPE_KEY"),
    *("GITHUB_TOKEN", "TOKEN", "GH_PAT", "AUTH_TOKEN", "CLIENT_SECRET", "PASSPHRASE", "JWT_SECRET", "AWS_CREDENTIALS"),
    *("POSTGRES_PASSWORD", "DB_PASSWORD_PROD", "ROOT_PASS", "ENCRYPTION_KEY", "DB_CONNECTION_STRING"),
)
SMALL = (
    *("password", "passwd", "pass", "db_pass", "dbPassword", "pwd", "secret", "client_secret", "clientSecret", "token"),
    *("auth_token", "accessToken", "api_key", "apiKey", "private_key", "credentials", "auth", "connectionString"),
    *("passphrase", "smtpPass", "signingKey", "refresh_token", "githubPat", "gh_pat"),
)

CAPITAL_PLACES: dict[str, str] = {
    "an env file": "HOME=/root\n{n}={v}\nPORT=80\n",
    "an env file, quoted": 'HOME=/root\n{n}="{v}"\nPORT=80\n',
    "export": "export {n}='{v}'\nrun",
    "before a command": "{n}='{v}' ./run --fast",
    "docker -e": "docker run -e {n}={v} -p 80:80 image",
    "a compose list": "environment:\n  - {n}={v}\n  - PORT=80\n",
    "a compose map": 'environment:\n  {n}: "{v}"\n  PORT: 80\n',
    "a Dockerfile": "FROM x\nENV {n}={v}\nRUN y\n",
    "a log line": "12:00:01 INFO starting with {n}={v}",
    "a pair": '[{{"name":"{n}","value":"{v}"}}]',
    "a pair with more": '[{{"name": "{n}", "value": "{v}", "type": "plain"}}]',
    "a pair in YAML": "env:\n  - name: {n}\n    value: '{v}'\n",
    "Python": "{n} = '{v}'\nrun()",
    "JavaScript": 'const {n} = "{v}";\n',
    "os.environ": "os.environ['{n}'] = '{v}'",
    "process.env": 'process.env.{n} = "{v}";',
}
SMALL_PLACES: dict[str, str] = {
    "JSON in text": '{{"user": "ada", "{n}": "{v}", "n": 1}}',
    "compact JSON in text": '{{"user":"ada","{n}":"{v}","n":1}}',
    "YAML, quoted": "user: ada\n{n}: '{v}'\nn: 1\n",
    "TOML": 'user = "ada"\n{n} = "{v}"\nn = 1\n',
    "Python": "connect(user='ada', {n}='{v}', n=1)",
    "JavaScript": 'connect({{user: "ada", {n}: "{v}", n: 1}})',
    "PHP": "'{n}' => '{v}',",
    "Go": '{n} := "{v}"\n',
    "a member": 'self.{n} = "{v}"\n',
    "a Python literal": "{{'user': 'ada', '{n}': '{v}'}}",
}
PLAIN_PLACES: dict[str, str] = {
    "YAML": "user: ada\n{n}: {v}\nn: 1\n",
    "an INI file": "[db]\nuser=ada\n{n}={v}\nn=1\n",
    "an INI file, spaced": "[db]\nuser = ada\n{n} = {v}\nn = 1\n",
}
OTHERS: dict[str, tuple[str, str]] = {
    "a URL with @": ("mysql://root:p@{v}@db.test/app", "p@{v}"),
    "a URL": ("postgres://ada:{v}@db.test:5432/app", "{v}"),
    "a token as user": ("git clone https://{v}@git.test/a/b.git", "{v}"),
    "?key=": ("GET https://h.test/x?a=1&key={v}&b=2", "{v}"),
    "SAS": ("https://a.blob.test/c?sv=2020-01-01&sp=r&sig={v}%3D", "{v}"),
    "presigned": ("https://s3.test/b?X-Amz-Date=1&X-Amz-Signature={v}", "{v}"),
    "Authorization: Bearer": ("curl -H 'Authorization: Bearer {v}' https://h.test", "{v}"),
    "a bearer in another header": ("X-Auth: Bearer {v}\n", "{v}"),
    "authorization: Token": ("authorization: Token {v}\n", "{v}"),
    "netrc": ("machine h.test login ada password {v}\n", "{v}"),
    "netrc, in lines": ("machine h.test\n  login ada\n  password {v}\n", "{v}"),
    "pgpass": ("db.test:5432:app:ada:{v}\n", "{v}"),
    "mysql -p": ("mysql -h db -u root -p'{v}' app", "{v}"),
    "mysqldump -p": ("mysqldump -u root -p{v} app", "{v}"),
    "sshpass -p": ("sshpass -p {v} ssh ada@h", "{v}"),
    "docker login -p": ("docker login -u ada -p {v} registry.test", "{v}"),
    "curl -u": ("curl -s -u ada:{v} https://h.test", "{v}"),
    "--password": ("tool --user ada --password {v} run", "{v}"),
    "--password=": ("tool --password={v} run", "{v}"),
    "--db-pass": ("tool --db-pass '{v}' run", "{v}"),
    "--api-key": ("tool --api-key {v} run", "{v}"),
    "a list of arguments": ('spawn("tool", ["--password", "{v}", "run"])', "{v}"),
    "Pwd=": ("Server=db;Uid=ada;Pwd={v};Pooling=true", "{v}"),
    "Password=": ('"Server=db;User Id=ada;Password={v};"', "{v}"),
    "AccountKey=": ("AccountName=x;AccountKey={v};EndpointSuffix=y", "{v}"),
    "redis-cli -a": ("redis-cli -h r -a {v} ping", "{v}"),
    "Cookie": ("GET / HTTP/1.1\nCookie: theme=dark; sid={v}\n\n", "{v}"),
    "Cookie of HTTP/2": ("> cookie: sid={v}\n", "{v}"),
    "Set-Cookie": ("Set-Cookie: sid={v}; HttpOnly\n", "{v}"),
    "Cookie in a map": ('headers = {{"Cookie": "sid={v}", "n": "1"}}', "{v}"),
    "curl -H Cookie": ("curl -H 'cookie: sid={v}' https://h.test", "{v}"),
    "curl -b": ("curl -s -b 'sid={v}' https://h.test", "{v}"),
    "curl --cookie": ('curl https://h.test --cookie "a=b; sid={v}"', "{v}"),
    "curl -U": ("curl -x h.test -U 'ada:{v}' https://h.test", "{v}"),
    "htpasswd -b": ("htpasswd -b /etc/htpasswd ada '{v}'", "{v}"),
    "htpasswd -nb": ("htpasswd -nbB ada {v}", "{v}"),
    "sudo -S": ("echo '{v}' | sudo -S apt-get update", "{v}"),
    "printf, sudo -S": ("printf '%s\\n' \"{v}\" | sudo -k -S ls", "{v}"),
    "sudo -S <<<": ("sudo -S ls <<< '{v}'", "{v}"),
    "--password-stdin": ("echo {v} | docker login -u ada --password-stdin", "{v}"),
    "--with-token": ('echo "{v}" | gh auth login --with-token', "{v}"),
    "chpasswd": ("echo 'ada:{v}' | sudo chpasswd", "{v}"),
    "openssl pass:": ("openssl enc -aes-256-cbc -in a -pass 'pass:{v}'", "{v}"),
    "zip -P": ("zip -r -P '{v}' a.zip a", "{v}"),
    "7z -p": ("7z a -p'{v}' a.7z a", "{v}"),
    "mongosh -p": ("mongosh -u ada -p '{v}' app", "{v}"),
    "sqlcmd -P": ("sqlcmd -S db -U sa -P '{v}' -Q 'select 1'", "{v}"),
    "rabbitmqctl": ("rabbitmqctl add_user ada '{v}'", "{v}"),
    "net user": ("net user ada '{v}' /add", "{v}"),
    "IDENTIFIED BY": ("CREATE USER 'ada'@'%' IDENTIFIED BY '{v}';", "{v}"),
    "identified with": ("alter user ada identified with mysql_native_password by '{v}'", "{v}"),
    "WITH PASSWORD": ("CREATE ROLE ada LOGIN PASSWORD '{v}';", "{v}"),
    "PASSWORD()": ("SET PASSWORD FOR 'ada'@'%' = PASSWORD('{v}');", "{v}"),
    "psql -c": ("psql -c \"ALTER USER ada WITH ENCRYPTED PASSWORD '{v}'\"", "{v}"),
    "ConvertTo-SecureString": ("$p = ConvertTo-SecureString '{v}' -AsPlainText -Force", "{v}"),
    "ConvertTo-SecureString -String": ('ConvertTo-SecureString -AsPlainText -String "{v}" -Force', "{v}"),
    "NetworkCredential": ('[System.Net.NetworkCredential]::new("ada", "{v}")', "{v}"),
}
SHELL = {"docker -e", "a Dockerfile", "mysqldump -p", "sshpass -p", "docker login -p", "curl -u", "--password",
         "--password=", "--api-key", "redis-cli -a", "htpasswd -nb", "--password-stdin"}  # fmt: skip
"""Places where a shell reads the value without quotes, so that these mean something else:"""
NOT_IN_SHELL = {"a tail after (", "a tail after )", "a tail after ;", "a tail after $"}

ADDRESS = {"?key=", "SAS", "presigned", "a token as user"}
"""Places in an address, for values that a service draws."""
DRAWN = {"with a digit", "random", "hexadecimal"}
BEARERS = {"a word", "random", "hexadecimal"}
"""Values that count as a bearer without the name of a header that says so."""


class Case(NamedTuple):
    """A ``text`` that contains ``secret``."""

    place: str
    name: str
    kind: str
    text: str
    secret: str


def cases() -> Iterator[Case]:
    """Every kind of secret in every place that makes sense."""
    for kind, value in VALUES.items():
        for names, places in ((CAPITALS, CAPITAL_PLACES), (SMALL, SMALL_PLACES), (SMALL, PLAIN_PLACES)):
            for name in names:
                for place, form in places.items():
                    if _makes_sense(place, kind):
                        yield Case(place, name, kind, form.format(n=name, v=value), value)
        for place, (form, secret) in OTHERS.items():
            if _makes_sense(place, kind):
                yield Case(place, place, kind, form.format(v=value), secret.format(v=value))
    for name in CAPITALS:
        yield Case("an env file", name, "a tail after a quote", f'A=1\n{name}=Zk3"tailpart\nB=2\n', 'Zk3"tailpart')
    for name in SMALL:
        yield Case("JSON", name, "a tail after a quote", json.dumps({"a": 1, name: 'Zk3"tailpart', "b": 2}), "tailpart")


def _makes_sense(place: str, kind: str) -> bool:
    if place == "a bearer in another header":
        return kind in BEARERS
    return not (place in SHELL and kind in NOT_IN_SHELL) and not (place in ADDRESS and kind not in DRAWN)


def values() -> Iterator[tuple[Any, str]]:
    """JSON values instead of texts, each with its secret."""
    for secret in VALUES.values():
        for name in (*CAPITALS, *SMALL):
            yield {"user": "ada", name: secret}, secret
            yield {"env": [{"name": name, "value": secret}]}, secret
            yield {"env": [{"key": name, "kind": "plain", "value": secret}]}, secret
        for flag in ("--password", "--token", "--db-pass", "--api-key", "--client-secret"):
            yield {"argv": ["tool", flag, secret, "run"]}, secret


def leaks(depth: int = 0) -> list[Case]:
    """The cases whose secret, or its end, remains; the text is inside ``depth`` more layers of JSON."""
    redactor, found = Redactor(), []
    for case in cases():
        text = case.text
        for _ in range(depth):
            text = json.dumps({"output": text})
        cleaned = json.dumps(redactor.clean({"text": text}))
        if case.secret in cleaned or ("tail" in case.secret and "tailpart" in cleaned):
            found.append(case)
    return found
