# SPDX-License-Identifier: Apache-2.0
"""From a mapping of arrays to the C structs that `tffi_inference_submit` reads.

Second step of the way that ``_completion`` tells. The C structs for one set of input names are made
once and used again (`Template`). The addresses go with the submission and not into the structs, so
as long as arrays are like the last ones a call writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from tritonffi._call import encode, encode_name, plain_text, take_error
from tritonffi._enums import DataType, RequestFlag
from tritonffi._errors import InvalidArgumentError, TritonError, note
from tritonffi._native import ffi, lib
from tritonffi._output import Wanted
from tritonffi._place import Place
from tritonffi._request import parameter_entries
from tritonffi._submission import Submission
from tritonffi._tensor import PLAIN
from tritonffi._terms import Terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tritonffi._inference import Inference
    from tritonffi._input import Pieces
    from tritonffi._native import CData
    from tritonffi._request import Request
    from tritonffi._spec import ModelSpec

_ndarray = np.ndarray
_from_buffer = ffi.from_buffer
_submit = lib.tffi_inference_submit
_NUMBERS = ffi.typeof("uint64_t[]")
_LONGEST_TIMEOUT_US = 2**64 - 1
#: What is wanted of responses that may come out of the cache, where nothing else is said.
_CACHED = Wanted({}, batching=False, is_cached=True)


class Submitter(Protocol):
    """What a request needs of a server; `_lifecycle` has the one that there is."""

    native: CData

    def refusal(self) -> Exception:
        """Return why nothing can be submitted."""
        ...


class Template:
    """The C structs of requests with the same input names to one model.

    One call uses it at a time; the structs only have to live until `tffi_inference_submit` returns.
    After an exception it is not to be used again: what went with that request is still written in.

    Args:
        spec: What the model takes and gives,
        version: and its version, or -1.
        names: Of the inputs.
        home: Where it waits for the next call.
        changes: What `tffi_model_changes` counted before the spec was read.

    Attributes:
        home: Where it waits for the next call.
        native: The ``tffi_request *``.
        places: Its inputs.
        terms: What is said with the request that is described.
        is_steady: Whether the last request said no more than its inputs, and these were such that
            `alike` could take them.
    """

    __slots__ = (
        "_changes",
        "_error",
        "_extra",
        "_keep",
        "_spares",
        "_spec",
        "_special",
        "_submission",
        "_tensors",
        "_usual",
        "home",
        "is_steady",
        "native",
        "places",
        "terms",
    )

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        names: Sequence[str],
        home: list[Template],
        changes: int,
    ) -> None:
        spec.check_input_names(names)
        spec.check_parts()
        self.home = home
        self._spec = spec
        self._keep: list[object] = []  # what the structs point to
        self._tensors = ffi.new("tffi_tensor[]", max(1, len(names)))
        self.places = [Place(spec, name, self._tensors + i) for i, name in enumerate(names)]
        for place in self.places:
            place.tensor.name = self._text(encode(place.name, "an input name"))
        self._submission = Submission(ffi.new("tffi_ticket *"))
        self._error = ffi.new("struct TRITONSERVER_Error **")
        self.native = ffi.new("tffi_request *")
        self.native.model_name = self._text(encode_name(spec.name))
        self.native.model_version = version
        self.native.inputs = self._tensors
        self.native.input_count = len(names)
        # Triton's requests serve again from the second one on that is alike.
        self._spares = ffi.gc(ffi.new("tffi_spares **"), lib.tffi_spares_release)
        self.native.ensemble = spec.is_ensemble
        self.native.lending = True  # its inference stands in its queue's table, with the pins
        self.is_steady = False
        self._changes = changes
        # What lives from `describe` to `clear`, for requests that say more than their inputs.
        self._usual = Terms(spec.name, wanted=_CACHED if spec.is_cached else None)
        self.terms = self._usual
        self._extra: object = None
        self._special: tuple[list[tuple[Place, Pieces]], object] | None = None

    def _text(self, text: bytes) -> CData:
        copy = ffi.new("char[]", text)
        self._keep.append(copy)
        return copy

    def describe(
        self,
        inputs: Mapping[str, object],
        request: Request | None = None,
        pins: list[CData] | None = None,
    ) -> list[CData]:
        """Check a request and write it into the C structs, with all that there may be to it.

        Args:
            inputs: Exactly the names of this template.
            request: What else is said; None: nothing.
            pins: What `alike` has returned for the inputs.

        Returns:
            The addresses of the inputs, each of which keeps its memory: to be held until the
            inference is over.
        """
        special: list[tuple[Place, Pieces]] = []
        if pins is None:
            self._change()
            pins = self._write(inputs, special)
        elif not self.is_steady:
            self.spare()
        if request is not None:
            self._extra = self._set_extra(request)
        if special:
            self._special = special, self._set_pieces(special, pins)
        return pins

    def alike(self, inputs: object) -> list[CData] | None:
        """Take a request whose inputs differ from the last ones in nothing but their addresses.

        Returns:
            Those, each of which keeps its array; None: there is more to it.
        """
        if type(inputs) is not dict or len(inputs) != len(self.places):
            return None
        pins = []
        for place in self.places:
            value = inputs.get(place.name)
            if (  # as `Place.takes` says, but without a call; dtypes of pickles are only equal
                type(value) is not _ndarray
                or value.shape != place.alike
                or value.flags.num & PLAIN != PLAIN
                or (value.dtype is not place.storage and value.dtype != place.storage)
            ):
                return None
            pins.append(_from_buffer(value))
        return pins

    def spare(self) -> None:
        """Have Triton's requests serve again, as long as all are alike."""
        self.is_steady = True
        if self._spec.leaves_marks:
            return
        if not self._spares[0]:
            lib.tffi_spares_new(self._spares, self._changes)
        self.native.spares = self._spares[0]

    def _change(self) -> None:
        """Let go of requests that are not like those to come."""
        self.is_steady = False
        self.native.spares = ffi.NULL
        if self._spares[0]:
            lib.tffi_spares_change(self._spares[0])

    def unlike(self, inputs: Mapping[str, object]) -> Exception:
        """Return why inputs are not like the last ones."""
        self._spec.check_input_names(inputs)
        if inputs.keys() != {place.name for place in self.places}:
            names = ", ".join(repr(place.name) for place in self.places)
            return InvalidArgumentError(
                f"model {self._spec.name!r}: the call was prepared for the inputs {names}"
            )
        return next(
            place.unlike(inputs[place.name])
            for place in self.places
            if not place.takes(inputs[place.name])
        )

    def _write(
        self, inputs: Mapping[str, object], special: list[tuple[Place, Pieces]]
    ) -> list[CData]:
        """Write inputs of any kind, and check them; those that come in pieces go to `special`."""
        pins = []
        for place in self.places:
            value = inputs[place.name]
            pieces = None
            try:
                if type(value) is not _ndarray:
                    pieces = place.take_apart(value, batching=self._spec.max_batch_size > 0)
                if pieces is None:
                    pins.append(place.write(value))
                else:
                    pins.append(ffi.NULL)
                    special.append((place, pieces))
            except (TritonError, TypeError):
                raise  # ours, which say it themselves
            except Exception as error:
                note(error, f"in {place.what}")
                raise
        self._spec.check_shapes(tuple((place.name, place.shape) for place in self.places))
        return pins

    def submit(self, server: Submitter, inference: Inference) -> None:
        """Submit what was described.

        Args:
            server: Where to.
            inference: Takes the token; its queue gets the completions. If this raises, it is over.
        """
        submission = self._submission
        inference.submission = submission
        if not inference.is_usual:
            self.native.max_pending = inference.max_pending
            inference.enter()
        token = 0
        try:
            # Whoever closes the server clears its handle first, and then waits for all that stand
            # in the table. A signal handler may run when a call is over, so before all of this or
            # after it.
            inference.queue.in_flight[inference.key] = inference
            handle = server.native
            if handle is not None:
                inference.token = token = _submit(
                    handle,
                    self.native,
                    inference.pins,
                    inference.key,
                    inference.queue.native,
                    submission.native,
                    self._error,
                )
        except BaseException:  # Ctrl-C, above all: the caller gets nothing that he could cancel
            if inference.live_token():
                inference.cancel()
            else:
                inference.leave()
            raise
        if not token:
            inference.leave()
            if handle is None:
                raise server.refusal()
            raise take_error(self._error[0], f"model {inference.model_name!r}")
        if server.native is None:
            # Closed meanwhile: whoever did that has found no token to cancel it by.
            inference.cancel()
        if self._extra is not None or self._special is not None or not inference.is_usual:
            self.clear()

    def submit_each(self, server: Submitter, inferences: Sequence[Inference]) -> bool:
        """Submit what was described for each of several inferences, in one call of C.

        Args:
            server: Where to.
            inferences: The one described, and others whose pins are from `alike`. They take their
                tokens; those that Triton refuses are over without one.

        Returns:
            Whether all of them are in flight.
        """
        if len(inferences) == 1:
            self.submit(server, inferences[0])
            return True
        count = len(inferences)
        data: list[CData] = []
        for inference in inferences:
            data += inference.pins or ()
        keys = [inference.key for inference in inferences]
        tokens = ffi.new(_NUMBERS, count)
        queue = inferences[0].queue
        submission = Submission(tokens, keys)
        for inference in inferences:
            inference.submission = submission
            if not inference.is_usual:
                inference.enter()
        entering = dict(zip(keys, inferences, strict=True))
        in_flight = queue.in_flight
        are_started = False
        try:
            in_flight |= entering  # and so on, as in `submit`
            handle = server.native
            if handle is not None:
                are_started = lib.tffi_inference_submit_each(
                    handle, self.native, data, keys, count, queue.native, tokens
                )
            # Where it was closed meanwhile, whoever did that has found no tokens to cancel them by.
            _give_tokens(inferences, tokens, is_wanted=server.native is not None)
        except BaseException:  # likewise
            _give_tokens(inferences, tokens, is_wanted=False)
            raise
        if handle is None:
            raise server.refusal()
        self.clear()
        return are_started

    def prepare(self, inputs: Mapping[str, object], request: Request) -> None:
        """Describe a request of which all later ones are to differ in nothing but the arrays."""
        self.describe(inputs, request, self.alike(inputs))
        self._keep.append(self._extra)
        self._extra = None
        self.spare()

    def clear(self) -> None:
        """Forget what the last request said beside its inputs."""
        self.native.max_pending = 0
        if self._extra is not None:
            self._extra = None
            self.terms = self._usual
            self._clear_extra()
        if self._special is not None:
            special, _ = self._special
            self._special = None
            self.native.piece_count = 0
            for place, _ in special:
                place.tensor.datatype = int(DataType[place.datatype])

    def _set_pieces(self, special: list[tuple[Place, Pieces]], pins: list[CData]) -> object:
        """Write the inputs that come in pieces; returns what must live until the submission."""
        native = self.native
        made = []
        keep: list[object] = []
        for place, pieces in special:
            if pieces.is_raw:
                place.tensor.datatype = lib.TRITONSERVER_TYPE_INVALID
            for piece in pieces.pieces:
                policy = ffi.NULL
                if piece.host_policy is not None:
                    policy = ffi.new("char[]", piece.host_policy)
                    keep.append(policy)
                pins.append(piece.data)
                made.append(
                    {
                        "data": piece.data,
                        "byte_size": piece.byte_size,
                        "host_policy": policy,
                        "memory_type": int(piece.memory_type),
                        "memory_type_id": piece.memory_type_id,
                        "input": self.places.index(place),
                    }
                )
        array = ffi.new("tffi_piece[]", made)
        keep.append(array)
        native.pieces = array
        native.piece_count = len(made)
        return keep

    def _set_extra(self, request: Request) -> object:
        """Write what goes with the inputs; returns what must live until the submission."""
        native = self.native
        spec = self._spec
        keep: list[object] = []
        wanted = self._usual.wanted
        native.spares = ffi.NULL

        def text(value: str, what: str) -> CData:
            copy = ffi.new("char[]", encode(value, what))
            keep.append(copy)
            return copy

        spec.check_output_names(request.outputs)
        parameters = parameter_entries(request.parameters, f"model {spec.name!r}", text)
        given = request.request_id  # which comes back: as a plain text
        request_id = given if type(given) is str else plain_text(given, "request_id")
        if request_id:
            native.request_id = text(request_id, "request_id")
        if isinstance(request.correlation_id, str):
            native.correlation_text = text(request.correlation_id, "correlation_id")
        else:
            native.correlation_id = request.correlation_id
        spec.check_correlation_id(request.correlation_id)
        native.priority = request.priority
        if request.queue_timeout is not None:
            # 0 is Triton's word for "no timeout of its own", so the shortest is a microsecond.
            longest = _LONGEST_TIMEOUT_US
            native.timeout_us = min(
                max(1, round(min(request.queue_timeout * 1e6, longest))), longest
            )
        flags = RequestFlag(0)
        if request.sequence_start:
            flags |= RequestFlag.SEQUENCE_START
        if request.sequence_end:
            spec.check_sequence_end()
            flags |= RequestFlag.SEQUENCE_END
        native.flags = int(flags)
        if request.out or request.labels or (request.outputs and spec.gives_all):
            wanted = Wanted.of(spec, request.out, request.labels, request.outputs)
            keep.append(wanted.describe(native))
        native.trace = ffi.NULL if request.trace is None else request.trace.native
        if request.outputs and not spec.gives_all:
            names = ffi.new(
                "const char *[]", [text(name, "an output name") for name in request.outputs]
            )
            keep.append(names)
            native.outputs = names
            native.output_count = len(request.outputs)
        if parameters:
            array = ffi.new("tffi_parameter[]", parameters)
            keep.append(array)
            native.parameters = array
            native.parameter_count = len(parameters)
        self.terms = Terms(spec.name, request_id, request.timeout, wanted)
        return keep

    def _clear_extra(self) -> None:
        native = self.native
        native.request_id = native.correlation_text = native.trace = ffi.NULL
        self.is_steady = False  # until the next that says no more than its inputs
        native.correlation_id = native.priority = native.timeout_us = native.flags = 0
        native.output_count = native.parameter_count = 0
        native.out_count = native.labelled_count = 0


class SequencedTemplate(Template):
    """The C structs of requests to an ensemble that takes none without the id of a sequence."""

    __slots__ = ()

    def describe(
        self,
        inputs: Mapping[str, object],
        request: Request | None = None,
        pins: list[CData] | None = None,
    ) -> list[CData]:
        """Refuse a request that says nothing; so it is asked for each, and none is alike."""
        if request is None:
            self._spec.check_correlation_id(0)
        return super().describe(inputs, request, pins)


def _give_tokens(inferences: Sequence[Inference], tokens: CData, *, is_wanted: bool) -> None:
    """Give inferences what C wrote; without a token one is over, as Triton has not got it."""
    for inference, token in zip(inferences, ffi.unpack(tokens, len(inferences)), strict=True):
        inference.token = token
        if not token:
            inference.leave()
        elif not is_wanted:
            inference.cancel()
