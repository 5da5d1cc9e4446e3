"""Exported packages are built by pip and by cmake, untouched, on a machine that may have neither GPU nor driver."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.exports import CONVOLUTION, built_by_cmake, installed, own_tests, run

pytestmark = [pytest.mark.nvcc, pytest.mark.slow, pytest.mark.xdist_group("exports")]
FORMULA = "scaled: D = relu(alpha*acc + bias)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return installed(folder, "evt_test_ops", CONVOLUTION, "--arch", "sm80", "--padding", "1")


def test_an_extension_passes_its_own_tests(folder: Path, target: Path) -> None:
    """Schemas, opcheck on the meta device and refusals; its numbers too where a GPU has the kernel."""
    assert re.match(r"(4 passed, 1 skipped|5 passed) ", own_tests(folder, target))


@pytest.mark.skipif(shutil.which("readelf") is None or shutil.which("nm") is None, reason="there are no binutils")
def test_an_extension_links_neither_the_driver_nor_pytorch_for_cuda(target: Path) -> None:
    library = target / "evt_test_ops/operators.so"
    needed = set(re.findall(r"NEEDED.*\[(.+?)\]", run("readelf", "-d", library)))
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if re.match(r"lib(cuda|cudart|torch_cuda|c10|torch_python|python)", name)]
    undefined = run("nm", "-D", "--undefined-only", library).split()
    assert not [name for name in undefined if re.match(r"cu(da)?[A-Z]\w+$", name)]
    assert run("nm", "-D", "--defined-only", library) == ""  # no other library can take a function for its own


def test_an_extension_is_imported_by_a_fresh_process(target: Path) -> None:
    code = "import sys, evt_test_ops; print(evt_test_ops.conv_relu_add.default._schema, 'evt' in sys.modules)"
    printed = run(sys.executable, "-c", code, PYTHONPATH=str(target), CUDA_VISIBLE_DEVICES="")
    schema = "conv_relu_add(Tensor A, Tensor B, *, Tensor bias, Tensor residual) -> Tensor"
    assert printed == f"evt_test_ops::{schema} False\n"


@pytest.mark.parametrize(("built", "oldest", "served"), [("2.5.1", "", "2.5"), ("2.999.0", "2.998", "2.998 and later")])
def test_another_pytorch_is_refused(target: Path, tmp_path: Path, built: str, oldest: str, served: str) -> None:
    copy = shutil.copytree(target / "evt_test_ops", tmp_path / "evt_test_ops")
    (copy / "built_with.py").write_text(f'torch = "{built}"\noldest = "{oldest}"\n')
    code = "\ntry:\n    import evt_test_ops\nexcept ImportError as error:\n    print(error)"
    printed = run(sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert printed.startswith(f"evt_test_ops was built for PyTorch {served}, and this is ")
    assert "pip install --no-build-isolation" in printed


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_a_cmake_project(tmp_path: Path) -> None:
    """Its test runs or is skipped, and another project finds the installed files."""
    build = built_by_cmake(tmp_path, "evt_test_kernels", FORMULA, "--arch", "sm80")
    assert "100% tests passed" in run("ctest", "--test-dir", build)
    run("cmake", "--install", build, "--prefix", tmp_path / "installed")
    user = tmp_path / "user"
    user.mkdir()
    (user / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(user CXX)\nfind_package(evt_test_kernels REQUIRED)\n"
        "add_executable(user user.cpp)\ntarget_link_libraries(user evt_test_kernels::evt_test_kernels)\n"
    )
    name = "evt_test_kernels_scaled_sm80"
    (user / "user.cpp").write_text(
        f'#include <cstdio>\n#include "{name}.h"\n'
        f"int main() {{ std::puts({name}_error_string({name}_run(nullptr, 0, nullptr))); }}\n"
    )
    run("cmake", "-S", user, "-B", user / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}")
    run("cmake", "--build", user / "build")
    assert run(user / "build/user").startswith("wrong arguments: ")
