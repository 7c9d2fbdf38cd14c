# SPDX-License-Identifier: Apache-2.0
"""Find speech in audio that comes in pieces: a model with a memory, several streams at a time.

    python examples/voice_activity.py [FILE.wav ...] [--plot voice_activity.png]

The network is Silero VAD: for every 32 ms of sound it says how probable speech is, and it needs its
own state of 32 ms before. Here it is a sequence model: each stream is a sequence, whose requests
bear its correlation id and come one after the other; Triton's sequence batcher puts those of
different streams that wait at the same time into one call::

    stream 1: 32 ms, 32 ms, ...
    stream 2: 32 ms, 32 ms, ...  ->  sequence batcher  ->  one call, a row for each stream
    stream 3: 32 ms, 32 ms, ...

Without files it listens to half a minute of two people talking, and to sounds that it makes:
vowels, a tone, noise. Network and recording come out of the wheels of silero-vad and
pyannote.audio, which pip downloads once, without what these packages depend on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import wave
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
import numpy as np
import onnxruntime
import platformdirs

import tritonffi

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

RATE = 16_000  # samples a second
CHUNK = 512  # samples a request
CONTEXT = 64  # samples of the chunk before that the network sees again
STATE = (2, 128)
STREAMS = 8  # sequences at a time

SPEECH = 0.5  # the least probability that counts
PAUSE = 0.3  # seconds; a shorter one does not end a speech

NETWORK = ("silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_op15.onnx")
RECORDING = ("pyannote-audio==4.0.7", "pyannote/audio/sample/sample.wav")


def file_from_wheel(package: str, name: str) -> Path:
    """Returns a file of a wheel, which is downloaded the first time and not installed."""
    kept = platformdirs.user_cache_path("tritonffi") / "examples" / package / Path(name).name
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", folder, package], check=True)  # noqa: S603
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                Path(archive.extract(name, folder)).replace(kept)
    return kept


# The model


class VoiceDetector:
    """The network, with a memory for every sequence. It is called with a row for each of them."""

    def __init__(self, network: Path) -> None:
        """Loads the network."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(network, options, providers=providers)
        self.memories: dict[int | str, tuple[Array, Array]] = {}

    def __call__(self, samples: Array, context: tritonffi.Context) -> Array:
        """Returns the probability of speech in the next chunk of each sequence.

        Args:
            samples: A row for each sequence that has one now.
            context: Tells which sequences these are.
        """
        for request in context.requests:
            if request.sequence_start:
                self.memories[request.correlation_id] = (
                    np.zeros(CONTEXT, np.float32),
                    np.zeros(STATE, np.float32),
                )
        memories = [self.memories[request.correlation_id] for request in context.requests]
        before, states = map(np.stack, zip(*memories, strict=True))
        heard = np.concatenate([before, samples], axis=1)
        probability, states = self.session.run(
            None, {"input": heard, "state": np.swapaxes(states, 0, 1), "sr": np.array(RATE)}
        )
        for row, request in enumerate(context.requests):
            self.memories[request.correlation_id] = heard[row, -CONTEXT:], states[:, row]
            if request.sequence_end:
                del self.memories[request.correlation_id]
        return probability


def load_detector(server: tritonffi.Server, network: Path) -> tritonffi.Model:
    """Makes the network a sequence model of the server."""
    return server.load_function(
        "voice",
        VoiceDetector(network),
        inputs={"samples": ("FP32", [CHUNK])},
        outputs={"probability": ("FP32", [1])},
        max_batch_size=STREAMS,
        config={"sequence_batching": {"oldest": {"max_candidate_sequences": STREAMS}}},
    )


def listen(model: tritonffi.Model, streams: Sequence[Array]) -> list[Array]:
    """Sends the streams side by side, piece by piece; returns the probabilities of each."""
    chunks = [stream[: len(stream) // CHUNK * CHUNK].reshape(-1, 1, CHUNK) for stream in streams]
    sequences = [model.sequence() for _ in streams]
    heard: list[list[float]] = [[] for _ in streams]
    for i in range(max(map(len, chunks))):
        pending = [
            sequence.submit({"samples": own[i]}, sequence_end=i == len(own) - 1)
            if i < len(own)
            else None
            for sequence, own in zip(sequences, chunks, strict=True)
        ]
        for inference, probabilities in zip(pending, heard, strict=True):
            if inference is not None:
                probabilities.append(inference.result()["probability"].item())
    return [np.array(probabilities, np.float32) for probabilities in heard]


# Sounds


def read_wav(path: Path) -> Array:
    """Returns the samples of a file, between -1 and 1."""
    with wave.open(str(path)) as file:
        form = file.getnchannels(), file.getsampwidth(), file.getframerate()
        if form != (1, 2, RATE):
            raise SystemExit(f"{path}: must be one channel of 16 bits at {RATE} Hz")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples.astype(np.float32) / 2**15


# The lowest resonances of a mouth that says a, i, o, e, in Hz.
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (530, 1840, 2480))


def vowel(pitch: float, resonances: Sequence[int], seconds: float) -> Array:
    """Makes one vowel: the overtones of a falling pitch, as loud as they are near a resonance."""
    t = np.arange(int(seconds * RATE)) / RATE
    falling = pitch * (1.1 - 0.2 * t / seconds + 0.02 * np.sin(10 * np.pi * t))
    phase = 2 * np.pi * np.cumsum(falling) / RATE
    sound = np.zeros_like(t)
    for k in range(1, int(4000 / pitch)):
        near = [1 / (1 + ((k * pitch - f) / 80) ** 2) / i for i, f in enumerate(resonances, 1)]
        sound += sum(near) * np.sin(k * phase) / np.sqrt(k)
    sound *= np.sqrt(np.sin(np.pi * t / seconds))
    return sound / np.abs(sound).max()


def generated() -> Array:
    """Makes 12 seconds: silence, a low voice, a tone, noise, a high voice, silence."""
    random = np.random.default_rng(0)
    size = 2 * RATE

    def voice(pitch: float) -> Array:
        syllables = []
        while sum(map(len, syllables)) < size:
            resonances = VOWELS[random.integers(len(VOWELS))]
            syllables.append(
                vowel(pitch * random.uniform(0.9, 1.15), resonances, random.uniform(0.12, 0.25))
            )
            syllables.append(random.normal(0, 0.05, int(random.uniform(0.03, 0.07) * RATE)))
        return 0.3 * np.concatenate(syllables)[:size]

    silence = np.zeros(size)
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(size) / RATE)
    noise = 0.1 * random.standard_normal(size)
    sound = np.concatenate([silence, voice(120), tone, noise, voice(210), silence])
    return (sound + 0.001 * random.standard_normal(len(sound))).astype(np.float32)


# Results


class Span(NamedTuple):
    """A part of a stream, in seconds."""

    start: float
    end: float


def find_speech(probabilities: Array) -> list[Span]:
    """Returns where there is speech."""
    edges = np.flatnonzero(np.diff(probabilities >= SPEECH, prepend=False, append=False))
    spans: list[Span] = []
    for start, end in (edges.reshape(-1, 2) * CHUNK / RATE).tolist():
        if spans and start - spans[-1].end < PAUSE:
            spans[-1] = Span(spans[-1].start, end)
        else:
            spans.append(Span(start, end))
    return spans


def plot(path: Path, streams: dict[str, Array], heard: Sequence[Array]) -> None:
    """Draws each stream: the sound, the probability of speech, and where it is found."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of Agg

    figure, rows = plt.subplots(
        len(streams), figsize=(12, 3 * len(streams)), squeeze=False, layout="constrained"
    )
    for (axes,), (name, sound), probabilities in zip(rows, streams.items(), heard, strict=True):
        axes.plot(np.arange(len(sound)) / RATE, sound, color="0.6", linewidth=0.3)
        steps = np.arange(len(probabilities) + 1) * CHUNK / RATE
        axes.stairs(probabilities, steps, color="tab:blue", label="probability of speech")
        for span in find_speech(probabilities):
            axes.axvspan(*span, color="tab:green", alpha=0.15)
        axes.set(title=name, xlabel="seconds", xlim=(0, steps[-1]), ylim=(-1, 1.05))
        axes.legend(loc="lower left")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Find speech in audio streams.")
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="16 kHz, mono, 16 bit")
    parser.add_argument("--plot", type=Path, help="draw the result into this file")
    options = parser.parse_args()
    files = options.files or [file_from_wheel(*RECORDING)]
    streams = {path.name: read_wav(path) for path in files}
    if not options.files:
        streams["generated"] = generated()
    with tritonffi.Server() as server:
        model = load_detector(server, file_from_wheel(*NETWORK))
        heard = listen(model, list(streams.values()))
    for name, probabilities in zip(streams, heard, strict=True):
        print(f"{name}:")
        for span in find_speech(probabilities):
            print(f"  speech from {span.start:.1f} to {span.end:.1f} s")
    if options.plot:
        plot(options.plot, streams, heard)
        print(f"see {options.plot}")


if __name__ == "__main__":
    main()
