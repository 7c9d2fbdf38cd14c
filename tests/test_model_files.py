# SPDX-License-Identifier: Apache-2.0
"""Folders of models that Triton would wait for, or crash with."""

from __future__ import annotations

import shutil

import pytest
from _ensemble import ensemble

from tritonffi import InvalidArgumentError, ModelControlMode, Server, TritonError
from tritonffi._model_files import check_model, check_parts

CONFIG = 'name: "m" {} # "python"\n# backend: "python"\n'
PYTHON = 'backend: "python"'
POLICY = " version_policy {{ {} }}"


def write(folder, config, *files):
    """Write a model's folder; a file that ends in a slash is a folder."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if file.endswith("/") else path.touch()
    (folder / "config.pbtxt").write_text(CONFIG.format(config))
    return folder


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (PYTHON, ["1/model.py"]),
        (PYTHON, ["2/model.py", "10/model.py", "1/"]),  # only 10 is loaded
        (PYTHON + ' default_model_filename: "other.py"', ["1/other.py"]),
        (PYTHON + POLICY.format("specific { versions: [1] }"), ["1/model.py", "2/"]),
        (PYTHON, []),  # no version at all, of which Triton says so
        (PYTHON + POLICY.format("specific { versions: [1, 7] }"), ["1/model.py", "2/"]),
        (PYTHON + POLICY.format("specific { versions: [7] }"), ["1/", "2/"]),
        (PYTHON + POLICY.format("latest { num_versions: 2 }"), ["1/", "2/model.py", "3/model.py"]),
        (PYTHON + POLICY.format("latest { }"), ["1/"]),  # none, of which Triton says so
        # Triton passes over folders with zeros in front, and files; others are numbers in front.
        (PYTHON, ["1/model.py", "02/"]),
        (PYTHON, ["1/model.py", "00000000000000000000000000000/"]),
        (PYTHON, ["1/model.py", "20240101", "x2/"]),
        (PYTHON, ["1/model.py", "1.bak/"]),
        (PYTHON + " model_repository_agents { agents { name: 'other' } }", ["1/"]),
        ('backend: "tffitest"', ["1/"]),
        ("backend: 'python_like'", ["1/"]),
    ],
)
def test_what_is_whole_passes(tmp_path, config, files):
    """And so does what is no model of the python backend."""
    (tmp_path / "m").mkdir()
    check_model(write(tmp_path / "m", config, *files))


@pytest.mark.parametrize(
    ("config", "files", "missing"),
    [
        (PYTHON, ["1/"], "1/model.py"),
        (PYTHON, ["1/Model.py", "labels.txt"], "1/model.py"),
        (PYTHON, ["2/model.py", "10/"], "10/model.py"),
        (PYTHON + ' default_model_filename: "other.py"', ["1/model.py"], "1/other.py"),
        ("backend : 'python'", ["1/"], "1/model.py"),
        (PYTHON + POLICY.format("all {}"), ["1/", "2/"], "2/model.py"),
        (PYTHON + POLICY.format("all {}"), ["1/", "2/model.py"], "1/model.py"),
        (PYTHON + POLICY.format(""), ["1/", "2/model.py"], "1/model.py"),
        (PYTHON + POLICY.format("latest { num_versions: 1 }"), ["1/model.py", "2/"], "2/model.py"),
        (PYTHON + POLICY.format("latest { num_versions: 2 }"), ["2/", "10/model.py"], "2/model.py"),
        (PYTHON + POLICY.format("specific { versions: 1 }"), ["1/", "2/model.py"], "1/model.py"),
        (PYTHON + POLICY.format("specific { versions: [5, 5] }"), ["1/model.py"], "5/model.py"),
        (PYTHON, ["1/", "02/model.py"], "1/model.py"),
        (PYTHON, ["1/model.py", "2.disabled/model.py"], "2/model.py"),
        (PYTHON, ["1abc/model.py"], "1/model.py"),
        (PYTHON, ["1/model.py", " +2/model.py"], "2/model.py"),
        (PYTHON, ["1/model.py", "+002/model.py"], "2/model.py"),
    ],
)
def test_a_missing_file_is_named(tmp_path, config, files, missing):
    """With the place where it should be."""
    folder = write(tmp_path / "m", config, *files)
    with pytest.raises(InvalidArgumentError, match=f"'m': .*/m/{missing} is missing"):
        check_model(folder)


@pytest.mark.parametrize(
    ("config", "files", "missing"),
    [
        ('{"backend": "python", "defaultModelFilename": "x.py"}', ["1/model.py"], "1/x.py"),
        ('{"backend": "python", "versionPolicy": {"all": {}}}', ["1/", "2/"], "2/model.py"),
        ('{"default_model_filename": "model.py"}', ["1/"], "1/model.py"),
    ],
)
def test_a_config_in_json_names_it_too(tmp_path, config, files, missing):
    """In either form of the names of fields; it stands in place of the one that is there."""
    folder = write(tmp_path / "m", 'backend: "tffitest"', *files)
    with pytest.raises(InvalidArgumentError, match=f"'m': .*/m/{missing} is missing"):
        check_model(folder, config)


def test_a_name_may_say_the_backend(tmp_path):
    """As Triton takes it from there, where the config has none, or is none."""
    (tmp_path / "m.python" / "1").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match=r"m.python/1/model.py is missing"):
        check_model(tmp_path / "m.python")


def test_a_link_to_nowhere_is_no_file(tmp_path):
    """Nor for the process that would open it."""
    folder = write(tmp_path / "m", PYTHON, "1/")
    (folder / "1" / "model.py").symlink_to("gone")
    with pytest.raises(InvalidArgumentError, match="is missing"):
        check_model(folder)


@pytest.mark.parametrize("options", [{}, {"startup_models": ["m"]}, {"exit_on_error": False}])
def test_a_start_does_not_wait_for_it(tmp_path, options):
    """Where the model is to be loaded."""
    write(tmp_path / "m", PYTHON, "1/")
    with pytest.raises(InvalidArgumentError, match="is missing"):
        Server(tmp_path, **options)


def test_a_load_does_not_wait_for_it(tmp_path):
    """From a repository, a config, files, or a repository that was added."""
    write(tmp_path / "a" / "m", PYTHON, "1/")
    write(tmp_path / "b" / "folder", PYTHON, "1/")
    python = {"backend": "python"}
    with Server(tmp_path / "a", startup_models=[]) as server:
        server.register_repository(tmp_path / "b", {"folder": "mapped"})
        for name, config, files in (
            ("m", None, None),
            ("m", python, None),
            ("m", {**python, "default_model_filename": "x.py"}, {"1/model.py": b""}),
            ("mapped", None, None),
            ("new", python, None),
            ("new", python, {"1/weights": b""}),
        ):
            with pytest.raises(InvalidArgumentError, match="is missing"):
                server.load(name, config, files)


ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling {{ step [ {{ model_name: "{}" model_version: -1 }} ] }}
"""


def test_the_parts_of_an_ensemble_are_looked_at_too(tmp_path):
    """At a start and in a load, however deep they are, and those of an ensemble in itself."""
    write(tmp_path / "part", PYTHON, "1/")
    for name, part in (("inner", "part"), ("outer", "inner"), ("own", "own")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(ENSEMBLE.format(part))
    missing = "^ensemble 'outer', model 'part': .*/part/1/model.py is missing"
    with pytest.raises(InvalidArgumentError, match=missing):
        Server(tmp_path, startup_models=["outer"])
    with Server(tmp_path, startup_models=[]) as server:
        with pytest.raises(InvalidArgumentError, match=missing):
            server.load("outer")
        config = {
            "platform": "ensemble",
            "ensembleScheduling": {"step": [{"modelName": "part", "modelVersion": -1}]},
        }
        with pytest.raises(InvalidArgumentError, match="ensemble 'new', model 'part'"):
            server.load("new", config)
    check_parts(tmp_path / "own", None, lambda name: [tmp_path / name])


def test_a_part_that_is_loaded_is_looked_at_too(server, repository):
    """Triton would load it anew from its folder."""
    folder = write(repository / "part", PYTHON, "1/")
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    try:
        server.load(
            "part",
            {
                "backend": "tffitest",
                "input": [{"name": "INPUT0", **tensor}],
                "output": [{"name": "OUTPUT0", **tensor}],
            },
        )
        with pytest.raises(InvalidArgumentError, match=r"'chain', model 'part': .* is missing"):
            ensemble(server, "chain", ["part"], max_batch_size=0)
        server.unload("part")
    finally:
        shutil.rmtree(folder)


def test_a_poll_does_not_wait_for_it(tmp_path):
    """A folder that is being copied may be seen before its files."""
    (tmp_path / "models").mkdir()
    with Server(tmp_path / "models", model_control_mode=ModelControlMode.POLL) as server:
        write(tmp_path / "models" / "m", PYTHON, "1/")
        with pytest.raises(InvalidArgumentError, match="is missing"):
            server.poll()


BEYOND = ["9223372036854775808", "99999999999999999999", "99999999999999999999x", "-1", " -3"]


@pytest.mark.parametrize("version", BEYOND)
def test_what_can_be_no_version_is_refused(server, repository, version):
    """Numbers of more than 64 bits end the process, and negative ones cannot be asked for."""
    folder = write(repository / "versions", 'backend: "tffitest"', "1/", f"{version}/")
    message = f"^model 'versions': folder {version!r} is no version"
    try:
        for mode in (ModelControlMode.NONE, ModelControlMode.POLL):
            with pytest.raises(InvalidArgumentError, match=message):
                Server(repository, model_control_mode=mode)
        with pytest.raises(InvalidArgumentError, match=message):
            server.load("versions")
        with pytest.raises(InvalidArgumentError, match=message):
            server.load("versions", {"backend": "tffitest"}, {f"{version}/x": b""})
    finally:
        shutil.rmtree(folder)


def test_versions_of_files_are_of_any_length(tmp_path):
    """As keys they may be longer than names of folders."""
    for version, words in (("9" * 5000, "is no version"), ("+" + "0" * 5000 + "1", "1/model.py")):
        with pytest.raises(InvalidArgumentError, match=words):
            check_model(tmp_path / "m", '{"backend": "python"}', {f"{version}/x": b""})


def test_other_folders_beside_versions_are_not_looked_at(server, repository):
    """Triton passes over what is no number, and over a file; the greatest number is one."""
    greatest = str(2**63 - 1)
    zeros = "00099999999999999999999/"
    others = ["x9/", "007/", zeros, ".99999999999999999999/", "99999999999999999999"]
    folder = write(repository / "versions", "", "0/", f"{greatest}/", *others)
    tensor = "name: '{}' data_type: TYPE_FP32 dims: [-1]"
    (folder / "config.pbtxt").write_text(
        f"backend: 'tffitest' input {{ {tensor.format('INPUT0')} }} "
        f"output {{ {tensor.format('OUTPUT0')} }} version_policy {{ all {{}} }}"
    )
    try:
        model = server.load("versions")
        versions = [entry.version for entry in server.models() if entry.name == "versions"]
        assert versions == [0, 2**63 - 1]
        assert model.infer({"INPUT0": [5.0]}).model_version == 2**63 - 1
        for version in versions:
            handle = server.model("versions", version)
            assert handle.infer({"INPUT0": [5.0]}).model_version == version
        server.unload("versions")
    finally:
        shutil.rmtree(folder)


CIRCLES = {
    "itself": [("a", "a"), ("d", "a")],
    "two": [("a", "b"), ("b", "a"), ("c", "b"), ("d", "c")],
    "beside": [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")],
}


@pytest.mark.parametrize("circle", CIRCLES)
def test_ensembles_that_contain_one_another_are_refused(server, circle):
    """Triton would follow the circle until its stack is full, where another one leads to it."""
    refused = []
    own = f"{circle}_{{}}".format  # what is refused is remembered under its name
    try:
        for name, part in CIRCLES[circle]:
            with pytest.raises(TritonError) as raised:
                ensemble(server, own(name), [own(part)], max_batch_size=0)
            if "contain one another" in str(raised.value):
                refused.append(name)
        assert refused == {"itself": ["a"], "two": ["b"], "beside": ["c"]}[circle]
        # A model that has come in its place counts, and is no ensemble any more.
        tensor = ("FP32", [-1])
        server.load_function(
            own("a"), lambda x: x, inputs={"INPUT0": tensor}, outputs={"OUTPUT0": tensor}
        )
        chain = ensemble(server, own("d"), [own("a")], max_batch_size=0)
        assert chain.infer({"X": [4.0]})["Y"].tolist() == [4.0]
    finally:
        server.unload(own("d"))
        server.unload(own("a"))


def test_circles_in_a_repository_are_refused(tmp_path):
    """In each of the control modes, at a start, in a load and in a poll."""
    folder = tmp_path / "models"
    for name, part in CIRCLES["beside"]:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(ENSEMBLE.format(part))
    message = "ensembles contain one another: b -> c -> b"
    for mode in (ModelControlMode.NONE, ModelControlMode.POLL):
        with pytest.raises(InvalidArgumentError, match=message):
            Server(folder, model_control_mode=mode)
    with pytest.raises(InvalidArgumentError, match=message):
        Server(folder, startup_models=["d"])
    with Server(folder, startup_models=[]) as server:
        for name in "dab":
            with pytest.raises(InvalidArgumentError, match=message):
                server.load(name)
    shutil.move(folder, tmp_path / "later")
    folder.mkdir()
    with Server(folder, model_control_mode=ModelControlMode.POLL) as server:
        shutil.copytree(tmp_path / "later", folder, dirs_exist_ok=True)
        with pytest.raises(InvalidArgumentError, match=message):
            server.poll()
