# SPDX-License-Identifier: Apache-2.0
"""The streaming example hears what the network hears by itself, and what people wrote down."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tritonffi

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[examples]'")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="needs onnxruntime: pip install '.[examples]'"
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from tritonffi._library import Library

EXAMPLE = Path(__file__).parent.parent / "examples" / "voice_activity.py"


@pytest.fixture(scope="module")
def example() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("voice_activity", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recording(example: Any) -> npt.NDArray[np.float32]:
    """Half a minute of two people talking."""
    samples: npt.NDArray[np.float32] = example.read_wav(example.file_from_wheel(*example.RECORDING))
    return samples


def test_it_prints_where_there_is_speech_and_draws_it(library: Library, tmp_path: Path) -> None:
    """As a user runs it."""
    picture = tmp_path / "picture.png"
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, "--plot", picture],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=os.environ | {"TRITONFFI_LIBRARY": str(library.path)},
    )
    assert done.stdout == (
        "sample.wav:\n"
        "  speech from 6.8 to 7.2 s\n"
        "  speech from 7.6 to 30.0 s\n"
        "generated:\n"
        "  speech from 2.0 to 4.1 s\n"
        "  speech from 8.0 to 10.0 s\n"
        f"see {picture}\n"
    )
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_streams_side_by_side_do_not_hear_each_other(
    library: Library,
    example: Any,
    recording: npt.NDArray[np.float32],
) -> None:
    """Each gets what the network says when it hears that stream alone."""
    streams = [recording[150_000:250_000], example.generated()[20_000:70_000], recording[:9_999]]
    network = example.file_from_wheel(*example.NETWORK)
    with tritonffi.Server() as server:
        heard = example.listen(example.load_detector(server, network), streams)
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    for stream, probabilities in zip(streams, heard, strict=True):
        state = np.zeros((2, 1, 128), np.float32)
        padded = np.concatenate([np.zeros(64, np.float32), stream])
        assert len(probabilities) == len(stream) // 512
        for i, probability in enumerate(probabilities):
            piece = padded[None, i * 512 : i * 512 + 576]
            alone, state = session.run(
                None, {"input": piece, "state": state, "sr": np.array(16_000)}
            )
            assert alone.item() == pytest.approx(probability, abs=1e-4)


def test_it_finds_the_speech_that_people_wrote_down(
    library: Library,
    example: Any,
    recording: npt.NDArray[np.float32],
) -> None:
    """The package of the recording says who speaks when; in 95 of 100 pieces we agree."""
    package, name = example.RECORDING
    lines = example.file_from_wheel(package, name.replace(".wav", ".rttm")).read_text()
    written = np.zeros(len(recording) // 512, bool)
    for line in lines.splitlines():
        start, duration = map(float, line.split()[3:5])
        written[int(start * 31.25) : int((start + duration) * 31.25)] = True
    with tritonffi.Server() as server:
        model = example.load_detector(server, example.file_from_wheel(*example.NETWORK))
        (heard,) = example.listen(model, [recording])
    assert ((heard >= 0.5) == written).mean() > 0.95


def test_other_formats_are_refused(example: Any, tmp_path: Path) -> None:
    """With the name of the file and what it must be."""
    path = tmp_path / "stereo.wav"
    with example.wave.open(str(path), "wb") as file:
        file.setparams((2, 2, 16_000, 0, "NONE", "not compressed"))
    with pytest.raises(SystemExit, match=r"stereo\.wav: must be one channel of 16 bits"):
        example.read_wav(path)
