# SPDX-License-Identifier: Apache-2.0
"""Finding libtritonserver and loading it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from _backend import compiler

from tritonffi import _fetch, _library
from tritonffi._errors import AlreadyExistsError, LibraryNotFoundError
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from pathlib import Path

NAME = "libtritonserver.so"
ARGUMENT = "given"
PLACES = [
    ARGUMENT,
    "TRITONFFI_LIBRARY",
    "an installed nvidia-pytriton wheel",
    "the server of `tritonffi get-server`",
    "TRITON_ROOT",
    "the place of NVIDIA's container images",
    "the loader's path",
]


@pytest.fixture(scope="session")
def real() -> _library.Found:
    """Return the library that the whole suite runs on."""
    try:
        return _library.find()
    except LibraryNotFoundError:
        _fetch.get_server()
        return _library.find()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make every place empty, whatever this machine has."""

    def no_distribution(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    def no_loader() -> Path:
        raise _library._NothingThereError("not there")

    monkeypatch.delenv("TRITONFFI_LIBRARY", raising=False)
    monkeypatch.delenv("TRITON_ROOT", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(importlib.metadata, "distribution", no_distribution)
    monkeypatch.setattr(_library, "_CONTAINER_ROOT", tmp_path / "container")
    monkeypatch.setattr(_library, "_on_loader_path", no_loader)
    return monkeypatch


def make_root(root: Path, library: Path) -> Path:
    """Make an installation as in the container images, its library a link to `library`."""
    for part in ("lib", "backends", "caches", "repoagents"):
        (root / part).mkdir(parents=True)
    (root / "lib" / NAME).symlink_to(library)
    return root / "lib" / NAME


def make_wheel_folder(folder: Path, library: Path) -> Path:
    """Make a folder as in the wheel, its library a link to `library`, its neighbours empty."""
    libs = folder / "nvidia_pytriton.libs"
    libs.mkdir(parents=True)
    for name in ("libfirst-0123.so.1", "libsecond-4567.so.2.3", "libpython3-89ab.13.so.1.0"):
        (libs / name).touch()
    (libs / "libtritonserver-cdef.so").symlink_to(library)
    for part in ("backends", "caches", "python_backend_stubs"):
        (folder / "pytriton/tritonserver" / part).mkdir(parents=True)
    return libs / "libtritonserver-cdef.so"


def make_distribution(site: Path) -> None:
    """Make the wheel folder `site` an installed nvidia-pytriton."""
    information = site / "nvidia_pytriton-0.7.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: nvidia-pytriton\nVersion: 0.7.0\n")
    (information / "RECORD").write_text(
        "pytriton/__init__.py,,\nnvidia_pytriton.libs/libtritonserver-cdef.so,,\n"
    )


def run(
    code: str, *arguments: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a Python of its own, where nothing is loaded yet."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def load_elsewhere(library: Path) -> str:
    """Return the message of the LibraryNotFoundError that loading `library` ends with."""
    done = run(
        "import sys\n"
        "from tritonffi import _errors, _library\n"
        "try: _library.load(sys.argv[1])\n"
        "except _errors.LibraryNotFoundError as error: print(error)\n"
        "assert _library._loaded is None",
        library,
    )
    assert done.stderr == ""
    return done.stdout


def compile_library(path: Path, source: str, *flags: str) -> Path:
    """Compile the C `source` into a shared library."""
    command = [
        *compiler(),
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-o",
        str(path),
        "-x",
        "none",
        *flags,
    ]
    subprocess.run(command, input=source, text=True, check=True)
    return path


# Finding.


def test_each_place_wins_over_those_after_it(
    nowhere: pytest.MonkeyPatch, tmp_path: Path, real: _library.Found
) -> None:
    """With a library in all seven places each is found as soon as those before it have none."""
    library = {name: tmp_path / str(number) for number, name in enumerate(PLACES)}
    given = make_root(library[ARGUMENT], real.library)
    expected = {f"library={str(given)!r}": given}
    for name in ("TRITONFFI_LIBRARY", "TRITON_ROOT"):
        expected[name] = make_root(library[name], real.library)
        nowhere.setenv(name, str(library[name]))
    site = library[PLACES[2]]
    expected[PLACES[2]] = make_wheel_folder(site, real.library)
    make_distribution(site)
    installed = importlib.metadata.PathDistribution(site / "nvidia_pytriton-0.7.0.dist-info")
    nowhere.setattr(importlib.metadata, "distribution", lambda name: installed)
    fetched = tmp_path / "data/tritonffi/server/nvidia-pytriton-0.7.0"
    expected[PLACES[3]] = make_wheel_folder(fetched, real.library)
    nowhere.setattr(_fetch, "is_complete", lambda directory: directory == fetched)
    nowhere.setattr(_library, "_CONTAINER_ROOT", library[PLACES[5]])
    expected[PLACES[5]] = make_root(library[PLACES[5]], real.library)
    nowhere.setattr(_library, "_on_loader_path", lambda: real.library)
    expected[PLACES[6]] = real.library

    found = [_library.find(given)]
    found.append(_library.find())
    nowhere.delenv("TRITONFFI_LIBRARY")
    found.append(_library.find())
    (site / "nvidia_pytriton-0.7.0.dist-info/RECORD").write_text("pytriton/__init__.py,,\n")
    found.append(_library.find())
    shutil.rmtree(fetched)
    found.append(_library.find())
    nowhere.delenv("TRITON_ROOT")
    found.append(_library.find())
    shutil.rmtree(library[PLACES[5]])
    found.append(_library.find())

    order = [f"library={str(given)!r}", *PLACES[1:]]
    assert [one.origin for one in found] == order
    assert [one.library for one in found] == [expected[name] for name in order]
    assert [place.name for place in found[-1].passed] == PLACES[1:-1]


def test_nothing_anywhere_lists_every_place_and_the_ways_to_get_one(
    nowhere: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message says for each place, in order, what was looked at and why it is not there."""
    root, libs = tmp_path / "root", "nvidia_pytriton.libs"
    nowhere.setenv("TRITON_ROOT", str(root))
    (root / "lib").mkdir(parents=True)
    with pytest.raises(LibraryNotFoundError) as caught:
        _library.find()
    data = tmp_path / "data/tritonffi/server/nvidia-pytriton-0.7.0"
    lines = str(caught.value).splitlines()
    assert lines[:7] == [
        "no libtritonserver found. Looked at:",
        "  TRITONFFI_LIBRARY: not set",
        "  an installed nvidia-pytriton wheel: not installed",
        f"  the server of `tritonffi get-server`: {data}: does not exist",
        f"  TRITON_ROOT: {root} has no libtritonserver, neither in itself nor in lib or {libs}",
        f"  the place of NVIDIA's container images: {tmp_path / 'container'}: does not exist",
        "  the loader's path: not there",
    ]
    for way in ("tritonffi get-server", "TRITONFFI_LIBRARY", "TRITON_ROOT"):
        assert way in lines[7]


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_place_that_was_asked_for_is_never_passed_over(
    nowhere: pytest.MonkeyPatch, tmp_path: Path, real: _library.Found, how: str
) -> None:
    """A wrong argument or TRITONFFI_LIBRARY is an error although another place has a library."""
    nowhere.setenv("TRITON_ROOT", str(real.library))
    absent = tmp_path / "absent"
    if how == "variable":
        nowhere.setenv("TRITONFFI_LIBRARY", str(absent))
    with pytest.raises(LibraryNotFoundError, match=f"{absent}: does not exist") as caught:
        _library.find(absent if how == "argument" else None)
    assert "TRITON_ROOT:" not in str(caught.value)


def test_an_empty_variable_is_no_variable(
    nowhere: pytest.MonkeyPatch, real: _library.Found
) -> None:
    """As a shell has it: VAR= is the same as no VAR."""
    nowhere.setenv("TRITONFFI_LIBRARY", "")
    nowhere.setenv("TRITON_ROOT", str(real.library))
    assert _library.find().origin == "TRITON_ROOT"


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        ("root", "."),
        ("root", "lib"),
        ("root", "lib/libtritonserver.so"),
        ("wheel", "."),
        ("wheel", "nvidia_pytriton.libs"),
        ("wheel", "nvidia_pytriton.libs/libtritonserver-cdef.so"),
    ],
)
def test_a_folder_is_as_good_as_the_file(
    tmp_path: Path, real: _library.Found, layout: str, part: str
) -> None:
    """The installation, its folder of libraries and the file itself lead to the same."""
    make = make_root if layout == "root" else make_wheel_folder
    library = make(tmp_path / "here", real.library)
    found = _library.find(tmp_path / "here" / part)
    base = tmp_path / ("here" if layout == "root" else "here/pytriton/tritonserver")
    assert found.library == library
    assert found.backends == base / "backends"
    assert found.caches == base / "caches"
    assert found.repoagents == (base / "repoagents" if layout == "root" else None)
    assert found.stubs == (base / "python_backend_stubs" if layout == "wheel" else None)


def test_the_neighbours_are_the_libraries_of_a_wheel(tmp_path: Path, real: _library.Found) -> None:
    """All of them by full path, but not the library itself and not the stub's interpreter."""
    library = make_wheel_folder(tmp_path / "here", real.library)
    assert _library.find(library).neighbours == (
        library.with_name("libfirst-0123.so.1"),
        library.with_name("libsecond-4567.so.2.3"),
    )


def test_a_link_to_a_library_leads_to_what_is_around_that(tmp_path: Path) -> None:
    """A link in some folder of libraries is enough: neighbours and backends are found behind it."""
    (tmp_path / "file.so").touch()
    behind = make_wheel_folder(tmp_path / "here", tmp_path / "file.so")
    behind.unlink()
    behind.touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / NAME).symlink_to(behind)
    found = _library.find(tmp_path / "lib")
    assert found.library == tmp_path / "lib" / NAME
    assert [path.parent for path in found.neighbours] == [behind.parent] * 2
    assert found.backends == tmp_path / "here/pytriton/tritonserver/backends"


def test_several_libraries_in_a_folder_are_not_guessed_at(tmp_path: Path) -> None:
    """The message names them, and asks for one."""
    for name in ("libtritonserver-1.so", "libtritonserver-2.so"):
        (tmp_path / name).touch()
    with pytest.raises(
        LibraryNotFoundError,
        match=r"several \(libtritonserver-1\.so, libtritonserver-2\.so\): name the file",
    ):
        _library.find(tmp_path)


def test_an_installed_wheel_is_found_without_importing_it(
    nowhere: pytest.MonkeyPatch, tmp_path: Path, real: _library.Found
) -> None:
    """Only the metadata is read: the package's own import would fail here."""
    library = make_wheel_folder(tmp_path / "site", real.library)
    make_distribution(tmp_path / "site")
    (tmp_path / "site/pytriton/__init__.py").write_text("raise AssertionError")
    done = run(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tritonffi import _library\n"
        "print(_library.find().library)\n"
        "assert 'pytriton' not in sys.modules",
        tmp_path / "site",
    )
    assert (done.stdout, done.stderr) == (f"{library}\n", "")


def test_an_incomplete_server_is_not_used(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server of get-server that lost files is passed over, and the message says what to do."""
    fetched = tmp_path / "data/tritonffi/server/nvidia-pytriton-0.7.0"
    make_wheel_folder(fetched, tmp_path)
    with pytest.raises(LibraryNotFoundError, match=f"{fetched}: incomplete, run `tritonffi get-"):
        _library.find()


def test_the_loaders_path_is_the_last_place(tmp_path: Path) -> None:
    """What the loader finds by LD_LIBRARY_PATH is used, by its full path, with its backends."""
    (tmp_path / "backends").mkdir()
    (tmp_path / "lib").mkdir()
    library = compile_library(tmp_path / "lib" / NAME, "void TRITONSERVER_ApiVersion(void) {}")
    done = run(
        "from pathlib import Path\n"
        "from tritonffi import _library\n"
        "_library._in_wheel = _library._in_fetched = lambda: _library._at(Path('/nonexistent'))\n"
        "_library._CONTAINER_ROOT = Path('/nonexistent')\n"
        "found = _library.find()\n"
        "print(found.origin, found.library, found.backends)",
        env={"LD_LIBRARY_PATH": str(tmp_path / "lib"), "TRITONFFI_LIBRARY": "", "TRITON_ROOT": ""},
    )
    assert done.stderr == ""
    assert done.stdout == f"the loader's path {library} {tmp_path / 'backends'}\n"


@pytest.mark.parametrize("wrong", [7, b"/opt", ["/opt"]])
def test_a_library_that_is_no_path_is_a_type_error(wrong: object) -> None:
    """Before anything is looked at."""
    with pytest.raises(TypeError, match="library"):
        _library.find(wrong)  # type: ignore[arg-type]


# Loading.


def test_the_package_imports_without_triton(tmp_path: Path) -> None:
    """Importing looks for nothing; only loading does, and says where it looked."""
    done = run(
        "import tritonffi, tritonffi._fetch, tritonffi._library, tritonffi.__main__\n"
        "assert tritonffi._library._loaded is None\n"
        "from tritonffi._native import ffi, lib\n"
        "assert lib.tffi_library_path() == ffi.NULL\n"
        "tritonffi._library.load()",
        env={"TRITONFFI_LIBRARY": str(tmp_path / "absent")},
    )
    assert done.returncode == 1
    assert "LibraryNotFoundError: no libtritonserver found. Looked at:" in done.stderr


def test_loading_gives_the_library_and_what_belongs_to_it(real: _library.Found) -> None:
    """The path is the real one, the API is the one that we declare."""
    library = _library.load()
    assert library.path == real.library.resolve()
    assert library.backends == real.backends
    assert library.caches == real.caches
    assert library.origin == real.origin
    assert library.api_version[0] == 1
    assert lib.tffi_library_has(b"TRITONSERVER_ServerNew")


def test_loading_again_gives_the_same(real: _library.Found, tmp_path: Path) -> None:
    """From any thread, without a path, and by any path that leads to the same file."""
    library = _library.load()
    (tmp_path / NAME).symlink_to(real.library)
    seen: list[_library.Library] = []
    threads = [threading.Thread(target=lambda: seen.append(_library.load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen += [_library.load(real.library), _library.load(tmp_path)]
    assert all(one is library for one in seen)


def test_threads_that_load_first_at_once_load_once(real: _library.Found) -> None:
    """Whoever is first loads, the others get what he loaded."""
    done = run(
        "import sys, threading\n"
        "from tritonffi import _library\n"
        "seen, start = [], threading.Barrier(8)\n"
        "def load(): start.wait(); seen.append(_library.load(sys.argv[1]))\n"
        "threads = [threading.Thread(target=load) for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "assert len(seen) == 8 and all(one is seen[0] for one in seen)",
        real.library,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_library_cannot_be_loaded_as_well(tmp_path: Path, real: _library.Found) -> None:
    """The message names the one that runs and the one that was asked for."""
    _library.load()
    other = tmp_path / NAME
    other.touch()
    with pytest.raises(AlreadyExistsError) as caught:
        _library.load(other)
    assert str(real.library.resolve()) in str(caught.value)
    assert f"cannot load {other} as well" in str(caught.value)


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    """An interrupted download and a pointer file of Git LFS both end here."""
    (tmp_path / NAME).write_text("version https://git-lfs.github.com/spec/v1\n")
    message = load_elsewhere(tmp_path)
    assert f"cannot use {tmp_path / NAME} (found by library={str(tmp_path)!r}): it is no" in message
    assert "Git LFS" in message
    assert "tritonffi get-server" in message


def test_a_library_for_another_machine_says_for_which(tmp_path: Path, real: _library.Found) -> None:
    """The loader itself would say that there is no such file."""
    content = bytearray(real.library.read_bytes()[:4096])
    struct.pack_into("<H", content, 18, 183)
    (tmp_path / NAME).write_bytes(content)
    assert "it is built for aarch64, and this process is x86_64" in load_elsewhere(tmp_path)


def test_a_library_that_needs_a_newer_glibc_says_which(tmp_path: Path) -> None:
    """In one line: the newest version it needs, of all that it asks for, and the one found."""
    (tmp_path / "map").write_text("GLIBC_2.98 { global: f98; }; GLIBC_2.99 { global: f99; };")
    (tmp_path / "libc").mkdir()
    libc = compile_library(
        tmp_path / "libc/libc.so.6",
        "void f98(void) {} void f99(void) {}",
        "-nostdlib",
        "-Wl,-soname,libc.so.6",
        f"-Wl,--version-script={tmp_path / 'map'}",
    )
    source = "void f98(void); void f99(void); void g(void) { f98(); f99(); }"
    compile_library(tmp_path / NAME, source, "-nostdlib", str(libc))
    found = os.confstr("CS_GNU_LIBC_VERSION")
    assert found is not None
    message = load_elsewhere(tmp_path)
    assert f"it needs glibc 2.99 or newer, this system has {found.split()[1]}:" in message


def test_a_missing_neighbour_is_named(tmp_path: Path) -> None:
    """Without the loader's words one would look for libtritonserver itself."""
    other = compile_library(tmp_path / "libgone.so", "void f(void) {}", "-Wl,-soname,libgone.so.7")
    compile_library(tmp_path / NAME, "void f(void); void g(void) { f(); }", str(other))
    assert "a library that it needs is not there: libgone.so.7 (" in load_elsewhere(tmp_path)


def test_a_library_without_the_api_says_what_it_lacks(tmp_path: Path) -> None:
    """Whatever is no Triton, or too old to be of use, is refused before it is used."""
    compile_library(tmp_path / NAME, "void TRITONSERVER_ApiVersion(void) {}")
    assert "it lacks TRITONSERVER_" in load_elsewhere(tmp_path)


def test_a_library_of_another_api_says_both_versions(tmp_path: Path) -> None:
    """A major version is another API: nothing of it is used."""
    names = ffi.new("const char *const **")
    count = lib.tffi_library_functions(names)
    functions = [ffi.string(names[0][i]).decode() for i in range(count)]
    functions.remove("TRITONSERVER_ApiVersion")
    source = "".join(f"void {name}(void) {{}}\n" for name in functions)
    source += (
        "void *TRITONSERVER_ApiVersion(unsigned *major, unsigned *minor)"
        " { *major = 2; *minor = 5; return 0; }"
    )
    compile_library(tmp_path / NAME, source)
    assert "version 2.5 of Triton's C API" in load_elsewhere(tmp_path)
