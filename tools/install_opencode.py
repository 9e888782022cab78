"""Install the OpenCodes that the tests drive: one pinned npm platform package each, in the repository's cache.

    python tools/install_opencode.py              install if absent, verify, print the path of OpenCode 1
    python tools/install_opencode.py --two        the same for OpenCode 2
    python tools/install_opencode.py --path       print the path only (exit 1 when it is not installed)
    python tools/install_opencode.py --version V  the same for another version, next to the pinned one

Only the standard library: it runs before anything is installed. Exit codes: 0 ok, 1 failed, 2 usage.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.installing import InstallError, check_version, command_line, fetch, tail_of

VERSION = "1.18.33"
"""The OpenCode 1 that all tests are written against."""

VERSION_2 = "2.0.15"
"""The OpenCode 2 that the tests drive."""

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "opencode"
NPM_LIMIT_S = 900
VERSION_LIMIT_S = 60

_NETWORK_CODES = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")


def package_name(system: str, machine: str, *, avx2: bool, musl: bool) -> str:
    """The npm package with the executable for a platform.

    Args:
        system, machine: the results of ``platform.system()`` and ``platform.machine()``.
        avx2: whether the CPU has AVX2; without it the baseline build is needed.
        musl: whether the system's C library is musl (Alpine).

    Raises:
        InstallError: OpenCode has no build for this platform that the tests support.
    """
    names = {"Linux": "linux", "Darwin": "darwin"}
    machines = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    if system not in names or machine.lower() not in machines:
        raise InstallError(f"OpenCode is not tested on {system} {machine}; use Linux or macOS on x86-64 or ARM64.")
    architecture = machines[machine.lower()]
    name = f"opencode-{names[system]}-{architecture}"
    if architecture == "x64" and not avx2:
        name += "-baseline"
    return name + ("-musl" if musl else "")


def package_name_2(system: str, machine: str, *, musl: bool) -> str:
    """The npm package of OpenCode 2 for a platform. On x86-64 it is the baseline build, which runs on every CPU. npm's
    public registry is known to have only the package for Linux on x86-64.

    Raises:
        InstallError: as ``package_name``.
    """
    return "@opencode/cli" + package_name(system, machine, avx2=False, musl=musl).removeprefix("opencode")


def this_package(version: str = VERSION) -> str:
    """The package of a version for this machine."""
    if is_two(version):
        return package_name_2(platform.system(), platform.machine(), musl=_has_musl())
    return package_name(platform.system(), platform.machine(), avx2=_has_avx2(), musl=_has_musl())


def is_two(version: str) -> bool:
    """True for a version of OpenCode 2."""
    return version.startswith("2.")


def cache(version: str = VERSION) -> Path:
    """The directory of a version: ``CACHE`` for the pinned one, a separate one next to it for any other."""
    if version == VERSION_2:
        return CACHE.with_name("opencode2")
    return CACHE if version == VERSION else CACHE.with_name(f"{CACHE.name}-{version}")


def binary_path(version: str = VERSION) -> Path:
    """Where the executable is, or will be after the installation."""
    return cache(version) / "node_modules" / this_package(version) / "bin" / "opencode"


def install(version: str = VERSION) -> Path:
    """Install the package unless it is there, check that OpenCode runs, and return the executable.

    Raises:
        InstallError: npm is missing or failed, or the executable does not run.
    """
    binary, place = binary_path(version), cache(version)
    if not (binary.exists() and _installed_version(binary) == version):
        _npm_install(f"{this_package(version)}@{version}", place)
        if not binary.exists():
            raise InstallError(f"npm reported success, but {binary} is missing. Remove {place} and try again.")
    check_version(binary, f"opencode v{version}" if is_two(version) else version, place, VERSION_LIMIT_S)
    return binary


def _npm_install(package: str, place: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm was not found on PATH. Install Node.js (20 or newer, with npm) and try again.")
    place.mkdir(parents=True, exist_ok=True)
    command = [
        npm,
        "install",
        "--ignore-scripts",
        "--force",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(place),
        package,
    ]
    fetch("npm", command, package, NPM_LIMIT_S, lambda output: npm_failure(package, output, place))


def npm_failure(package: str, output: str, place: Path = CACHE) -> str:
    """Explain a failed ``npm install`` and what to do about it."""
    if any(code in output for code in _NETWORK_CODES):
        what = f"npm could not reach its registry to fetch {package}."
        todo = "Check the network, proxy and registry settings (`npm config list`), then try again."
    elif "E404" in output or "ETARGET" in output:
        what = f"npm's registry does not have {package}."
        todo = "Check `npm config get registry`: a mirror may lack it."
    else:
        what = f"npm could not install {package}."
        todo = f"See npm's words below; removing {place} and trying again may help."
    return f"{what}\n{todo}\nnpm said:\n{tail_of(output, 12)}"


def _installed_version(binary: Path) -> str | None:
    """The version in the cache; None if none can be read."""
    try:
        return str(json.loads((binary.parents[1] / "package.json").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return None


def _has_avx2() -> bool:
    if platform.system() == "Linux":
        cpuinfo = Path("/proc/cpuinfo")
        return cpuinfo.exists() and "avx2" in cpuinfo.read_text()
    sysctl = shutil.which("sysctl")
    if sysctl is None:
        return False
    done = subprocess.run([sysctl, "-n", "hw.optional.avx2_0"], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "1"


def _has_musl() -> bool:
    return platform.system() == "Linux" and any(Path("/lib").glob("ld-musl-*")) and not platform.libc_ver()[0]


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    return command_line(
        [argument for argument in given if argument != "--two"],
        description="Install the pinned OpenCode for the tests (with --two OpenCode 2).",
        version=VERSION_2 if "--two" in given else VERSION,
        binary_path=binary_path,
        install=install,
    )


if __name__ == "__main__":
    sys.exit(main())
