"""Finding the compiler and the headers, and saying how to get them."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

import evt.compilation.doctor as doctor
import evt.compilation.toolchain as toolchain
from evt.compilation import Check, diagnose, find_toolchain
from evt.errors import BuildError


def nvcc(path: Path, version: str = "13.0.88") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    release = ".".join(version.split(".")[:2])
    path.write_text(f"#!/bin/sh\necho x >> '{path}.asked'\necho 'Cuda tools, release {release}, V{version}'\n")
    path.chmod(0o755)
    return path


def headers(root: Path, version: str = "4.2.0") -> Path:
    include = root / "include/cutlass"
    include.mkdir(parents=True)
    (include / "cutlass.h").write_text("")
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    (include / "version.h").write_text("".join(f"#define CUTLASS_{part} {number} \n" for part, number in numbers))
    return root


class Site:
    """A machine with nothing on it, and a directory of pip's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, importlib.machinery.ModuleSpec] = {}

    def add(self, name: str, *, namespace: bool = False) -> Path:
        package = self.path / "site" / name
        package.mkdir(parents=True, exist_ok=True)
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(package)]
        if not namespace:
            spec.origin = str(package / "__init__.py")
        self.found[name] = spec
        return package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "CUTLASS_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", str(tmp_path / "usr/local/cuda"))
    site = Site(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", site.found.get)
    return site


def test_nothing_at_all_says_both(site: Site) -> None:
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    assert [(problem.code, problem.help) for problem in caught.value.diagnostics] == [
        ("E0701", "pip install nvidia-cuda-nvcc nvidia-cuda-cccl"),
        ("E0702", "pip install nvidia-cutlass"),
    ]


def test_the_order_of_places(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = site.add("nvidia", namespace=True)

    def found() -> Path:
        return toolchain.find_nvcc().path

    for home in (wheels / "cuda_nvcc", wheels / "cu12", wheels / "cu13"):
        for header in ("cuda_runtime.h", "cuda/std/utility"):
            (home / "include" / header).parent.mkdir(parents=True, exist_ok=True)
            (home / "include" / header).write_text("")
        assert nvcc(home / "bin/nvcc") == found()
    assert nvcc(tmp_path / "usr/local/cuda/bin/nvcc") == found()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda path"))
    assert found() == tmp_path / "usr/local/cuda/bin/nvcc"  # CUDA_PATH is stale: passed over
    nvcc(tmp_path / "cuda path/bin/nvcc")
    assert found() == tmp_path / "cuda path/bin/nvcc"
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path / "home/bin/nvcc").parents[1]))
    assert found() == tmp_path / "home/bin/nvcc"
    monkeypatch.setenv("PATH", str(nvcc(tmp_path / "path/nvcc").parent))
    assert found() == tmp_path / "path/nvcc"
    monkeypatch.setenv("CUDACXX", str(nvcc(tmp_path / "mine/nvcc-12")))
    assert found() == tmp_path / "mine/nvcc-12"


def test_a_relative_nvcc_becomes_absolute(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc(tmp_path / "here/nvcc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDACXX", "here/nvcc")
    assert toolchain.find_nvcc().path == tmp_path / "here/nvcc"


def test_a_wrong_cudacxx_is_not_passed_over(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(nvcc(tmp_path / "path/nvcc").parent))
    monkeypatch.setenv("CUDACXX", "/nowhere/nvcc")
    with pytest.raises(BuildError, match=r"E0701.*CUDACXX is '/nowhere/nvcc', which is not a program"):
        toolchain.find_nvcc()


def test_an_nvcc_that_does_not_work(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = nvcc(tmp_path / "nvcc")
    monkeypatch.setenv("CUDACXX", str(broken))
    for text in ("#!/bin/sh\necho cannot execute cicc; exit 1\n", "#!/no/such/interpreter\n", "\0\1\2"):
        broken.write_text(text)
        with pytest.raises(BuildError, match=r"E0701.*does not print its version"):
            toolchain.find_nvcc()


def test_the_version_is_asked_once(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = nvcc(tmp_path / "nvcc")
    monkeypatch.setenv("CUDACXX", str(asked))
    for _ in range(3):
        assert toolchain.find_nvcc().version == "13.0.88"
    assert (tmp_path / "nvcc.asked").read_text() == "x\n"
    nvcc(asked, "13.1.5")  # another compiler in its place
    assert toolchain.find_nvcc().version == "13.1.5"


def test_the_wheels_of_cuda_13(site: Site) -> None:
    home = site.add("nvidia", namespace=True) / "cu13"
    nvcc(home / "bin/nvcc")
    for header, wheel in (("cuda_runtime.h", "runtime"), ("cccl/cuda/std/utility", "cccl")):
        with pytest.raises(BuildError, match=f"help: pip install nvidia-cuda-{wheel}$"):
            toolchain.find_nvcc()
        (home / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        (home / "include" / header).write_text("")
    (home / "lib").mkdir()
    found = toolchain.find_nvcc()
    assert found.include == (home / "include/cccl", home / "include")
    assert found.lib == (home / "lib",)


def test_the_wheels_of_cuda_12(site: Site) -> None:
    wheels = site.add("nvidia", namespace=True)
    nvcc(wheels / "cuda_nvcc/bin/nvcc", "12.9.86")
    for header in ("cuda_runtime/include/cuda_runtime.h", "cuda_cccl/include/cuda/std/utility"):
        (wheels / header).parent.mkdir(parents=True)
        (wheels / header).write_text("")
    (wheels / "cuda_runtime/lib").mkdir()
    found = toolchain.find_nvcc()
    assert found.include == (wheels / "cuda_cccl/include", wheels / "cuda_runtime/include")
    assert found.lib == (wheels / "cuda_runtime/lib",)


def test_headers_of_a_checkout_come_first(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = headers(site.add("cutlass_library") / "source")
    found = toolchain.find_cutlass()
    assert found == toolchain.Cutlass(wheel / "include", "4.2.0", "wheel")
    assert "cutlass_library" not in sys.modules
    checkout = headers(tmp_path / "checkout", "4.7.0")
    monkeypatch.setenv("CUTLASS_PATH", str(checkout))
    assert toolchain.find_cutlass() == toolchain.Cutlass(checkout / "include", "4.7.0", str(checkout))
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"E0702.*which has no include/cutlass/cutlass.h"):
        toolchain.find_cutlass()


def test_headers_that_are_too_old(site: Site) -> None:
    headers(site.add("cutlass_library") / "source", "3.9.2")
    with pytest.raises(BuildError, match=r"E0702.*CUTLASS 3\.9\.2 in .* is too old: evt needs 4\.0 or newer"):
        toolchain.find_cutlass()


def test_the_whole_toolchain(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = headers(site.add("cutlass_library") / "source")
    monkeypatch.setenv("PATH", str(nvcc(tmp_path / "path/nvcc").parent))
    tools = find_toolchain()
    assert (tools.nvcc_version, tools.cutlass_version) == ("13.0.88", "4.2.0")
    assert tools.include_flags[-4:] == (
        *("-isystem", str(wheel / "include")),
        *("-isystem", str(wheel / "tools/util/include")),  # which CUTLASS's convolutions include
    )
    assert tools.evt_include is not None
    assert tools.evt_include.parts[-2:] == ("codegen", "include")


@pytest.mark.parametrize(
    ("gencode", "version", "needed"),
    [
        ("sm_80", "12.8.61", None),
        ("sm_80", "12.4.131", "12.8"),
        ("sm_90a", "11.8.0", "12.8"),
        ("sm_103a", "12.8.93", "12.9"),
        ("sm_103a", "13.0.88", None),
        ("sm_121a", "12.9.0", None),
        ("sm_120f", "12.8.0", None),
    ],
)
def test_an_nvcc_too_old_for_the_target(gencode: str, version: str, needed: str | None) -> None:
    if needed is None:
        toolchain.require_target(gencode, version)
        return
    with pytest.raises(BuildError, match=f"E0706.*nvcc {version} is too old: {gencode} needs {needed} or newer"):
        toolchain.require_target(gencode, version)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_doctor_on_a_bare_machine(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("NVCC_CCBIN", "no-such-compiler")
    monkeypatch.setattr(ctypes, "CDLL", missing_library)
    checks = diagnose()
    assert all(check.remedy for check in checks if not check.ok)
    assert not any(check.remedy for check in checks if check.ok)
    found = by_name(checks)
    assert found["Python"].ok
    wrong = {name for name, check in found.items() if not check.ok}
    assert {"nvcc", "C++ compiler", "CUTLASS headers", "cache directory", "NVIDIA driver"} <= wrong
    assert found["nvcc"].remedy.startswith("pip install")
    assert not found["NVIDIA driver"].required


def missing_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_doctor_on_a_good_machine(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers(site.add("cutlass_library") / "source")
    nvcc(tmp_path / "path/nvcc")
    nvcc(tmp_path / "path/g++", "12.2.0")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("NVCC_CCBIN", raising=False)
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "_DISK_BYTES", 1)
    found = by_name(diagnose())
    for name in ("Python", "nvcc", "C++ compiler", "CUTLASS headers", "cache directory", "free disk"):
        assert found[name].ok, found[name]
    assert "13.0.88" in found["nvcc"].found


def test_a_driver_older_than_the_compiler(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACXX", str(nvcc(tmp_path / "nvcc")))
    assert doctor._driver_version((13, 0)).ok
    old = doctor._driver_version((12, 4))
    assert not old.ok
    assert old.remedy == "update the driver to one that supports CUDA 13"
