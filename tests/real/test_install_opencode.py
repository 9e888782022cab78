"""Which package the installer chooses, and what it says if npm fails. Nothing is installed here."""

from __future__ import annotations

import pytest

from tools.install_opencode import VERSION_2, InstallError, binary_path, npm_failure, package_name, package_name_2


@pytest.mark.parametrize(
    ("system", "machine", "avx2", "musl", "name"),
    [
        ("Linux", "x86_64", True, False, "opencode-linux-x64"),
        ("Linux", "x86_64", False, False, "opencode-linux-x64-baseline"),
        ("Linux", "x86_64", False, True, "opencode-linux-x64-baseline-musl"),
        ("Linux", "aarch64", False, True, "opencode-linux-arm64-musl"),
        ("Darwin", "arm64", False, False, "opencode-darwin-arm64"),
        ("Darwin", "x86_64", True, False, "opencode-darwin-x64"),
    ],
)
def test_the_package_of_a_platform(system: str, machine: str, avx2: bool, musl: bool, name: str) -> None:
    assert package_name(system, machine, avx2=avx2, musl=musl) == name


@pytest.mark.parametrize(
    ("system", "machine", "musl", "name"),
    [
        ("Linux", "x86_64", False, "@opencode/cli-linux-x64-baseline"),
        ("Linux", "aarch64", True, "@opencode/cli-linux-arm64-musl"),
        ("Darwin", "arm64", False, "@opencode/cli-darwin-arm64"),
    ],
)
def test_the_package_of_opencode_2_of_a_platform(system: str, machine: str, musl: bool, name: str) -> None:
    assert package_name_2(system, machine, musl=musl) == name


def test_opencode_2_is_next_to_opencode_1() -> None:
    assert binary_path(VERSION_2).parents[4] != binary_path().parents[3]


def test_an_unknown_platform_is_named() -> None:
    with pytest.raises(InstallError, match="Plan9 pdp11"):
        package_name("Plan9", "pdp11", avx2=False, musl=False)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("npm error code ENOTFOUND", "could not reach its registry"),
        ("npm error code ETARGET", "does not have"),
        ("npm error code EACCES", "could not install"),
    ],
)
def test_a_failure_of_npm_says_what_happened(output: str, says: str) -> None:
    text = npm_failure("package@1", output)
    assert says in text
    assert output in text
