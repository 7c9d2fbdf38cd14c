# SPDX-License-Identifier: Apache-2.0
"""Text that comes word by word: a generator function as a decoupled model.

    python examples/text_stream.py [FILE] [--prompt WORD ...]

The model continues a text in the manner of FILE (the licence of this project, if none is given):
it knows which words follow which two others, and draws lots. What matters is the way of its words.
The generator yields one; it is a response of its own, and is there to be read while the generator
goes on. A reader who has enough drops the stream, and the generator ends at its next word.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import tritonffi

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

LICENSE = Path(__file__).parent.parent / "LICENSE"


class Writer:
    """Writes in the manner of a text."""

    def __init__(self, text: str) -> None:
        """Learns which word may follow each two words, and each one."""
        self.followers: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        words = text.split()
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            self.followers[first, second].append(third)
            self.followers[second,].append(third)

    def write(
        self, prompt: npt.NDArray[np.object_], context: tritonffi.Context
    ) -> Iterator[dict[str, list[bytes]]]:
        """Is the model: yields the words that follow the prompt."""
        words = prompt.item().decode().split()
        chance = random.Random(context.request.parameters["seed"])  # noqa: S311 - no secret
        for _ in range(int(context.request.parameters["words"])):
            if context.is_cancelled():
                return
            choice = self.followers.get(tuple(words[-2:])) or self.followers.get((words[-1],))
            if not choice:
                return
            words.append(chance.choice(choice))
            yield {"word": [words[-1].encode()]}


def word(response: tritonffi.Response) -> str:
    """Returns the word in a response."""
    text: str = response["word"].item().decode()
    return text


def show_while_it_comes(model: tritonffi.Model, prompt: str) -> None:
    """Prints each word as soon as it is there."""
    print(prompt, end="")
    for response in model.stream({"prompt": [prompt]}, parameters={"seed": 7, "words": 30}):
        print(" " + word(response), end="", flush=True)
    print("\n")


def show_the_beginning(model: tritonffi.Model, prompt: str) -> None:
    """Reads five words and drops the rest, which would take very long."""
    parameters = {"seed": 7, "words": 10**12}
    with model.stream({"prompt": [prompt]}, parameters=parameters, max_pending=10**6) as stream:
        words = [word(response) for response in islice(stream, 5)]
    print(f"{prompt} {' '.join(words)} ...\n")


async def show_many(model: tritonffi.Model, prompt: str, count: int) -> None:
    """Reads several continuations of one prompt at the same time, in one thread."""

    async def read(seed: int) -> str:
        parameters = {"seed": seed, "words": 8}
        stream = model.async_stream({"prompt": [prompt]}, parameters=parameters)
        return " ".join([word(response) async for response in stream])

    for text in await asyncio.gather(*map(read, range(count))):
        print(f"{prompt} {text}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Continue a text, word by word.")
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, default=LICENSE)
    parser.add_argument("--prompt", default="the Work", help="words that are in the file")
    options = parser.parse_args()
    writer = Writer(options.file.read_text(encoding="utf-8"))
    with tritonffi.Server() as server:
        model = server.load_function(
            "writer",
            writer.write,
            inputs={"prompt": ("BYTES", [1])},
            outputs={"word": ("BYTES", [1])},
            config={"instance_group": [{"kind": "KIND_CPU", "count": 3}]},
        )
        show_while_it_comes(model, options.prompt)
        show_the_beginning(model, options.prompt)
        asyncio.run(show_many(model, options.prompt, 5))


if __name__ == "__main__":
    main()
