# SPDX-License-Identifier: Apache-2.0
"""Metrics: Triton's as text, and families of one's own beside them.

The registry belongs to the process, not to a server: families live on when a server is closed.
Triton leaves three things to its callers, which are taken care of here:

- Metrics must be deleted before their family, so a family knows its metrics and closes them first.
- Two C families of one name share metrics without knowing of each other, and the first delete takes
  them from under the other. So there is one for each name, however often it is asked for.
- A name of Triton's own would share Triton's own metrics in the same way, so it is refused.

A signal handler, or a finalizer, may raise or use these classes after any call. So who holds a
handle changes, and a handle is made, used or deleted, with no call from the check up to there. That
is the branch which Python goes into without a jump: in 3.10 a jump counts as a call.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tritonffi._call import check, encode, owned, parameters, take_error
from tritonffi._closing import Closing
from tritonffi._enums import MetricFormat, MetricKind
from tritonffi._errors import ClosedError, InvalidArgumentError
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from tritonffi._call import CFunction
    from tritonffi._native import CData

_NAME = r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*"
_TRITONS = "nv_"

_Labels: TypeAlias = "tuple[tuple[str, str], ...]"


class _Held:
    """A C handle with its holders; the last one deletes it.

    Attributes:
        slot: Where C puts the handle; it has NULL until then, and where that has failed.
        holders: How many there are; in the table that it stands in, it has one at least.
    """

    __slots__ = ("holders", "slot")

    def __init__(self, ctype: str) -> None:
        """Start with one who holds it."""
        self.slot = ffi.new(ctype)
        self.holders = 1


class _Shared(_Held):
    """The C family behind all families of one name.

    Attributes:
        buckets: Of all its metrics.
        metrics: Its C metrics, by labels.
    """

    __slots__ = ("buckets", "metrics")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        super().__init__("struct TRITONSERVER_MetricFamily **")
        self.buckets = buckets
        self.metrics: dict[_Labels, _Held] = {}


_families: dict[str, _Shared] = {}
# Of every name that has been used: Triton never forgets one.
_kinds: dict[str, MetricKind] = {}
# Over all of it, and held while a handle is used. It is one for all families: a finalizer that uses
# a second one in the midst of a call for a first might wait for a thread that waits for that.
_lock = threading.RLock()


def _forked() -> None:
    """In a forked child: the lock may be held by a thread that is not there."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class MetricFamily(Closing):
    """Metrics of one's own, of one name and kind: they stand in the text of `Server.metrics`.

    Example::

        served = tritonffi.MetricFamily(MetricKind.COUNTER, "app_served_total", "Pages served")
        served.metric(page="start").increment()

    A family lives as long as the process, unless it is closed. Its name keeps its kind even then.
    Two families of one name and kind share their metrics and the first's description. Methods may
    be called from any thread. What backends make under the same name is beyond this class.

    Args:
        kind: COUNTER, GAUGE or HISTOGRAM.
        name: Letters, digits, ``_`` and ``:``; no digit and no ``__`` in front, and no ``nv_``,
            which is Triton's.
        description: What it counts.
        buckets: Of a histogram: the upper bounds of its buckets, ascending; one without bound
            comes after them by itself.

    Raises:
        InvalidArgumentError: The name cannot be, or stands for another kind or other buckets
            already; or buckets are missing, not ascending, or given to another kind.
        UnsupportedError: No library has been loaded yet (`Server` does), or it has no metrics.

    C: ``TRITONSERVER_MetricFamilyNew``, ``TRITONSERVER_MetricFamilyDelete``
    """

    def __init__(
        self,
        kind: MetricKind,
        name: str,
        description: str = "",
        *,
        buckets: Iterable[float] = (),
    ) -> None:
        if not isinstance(kind, MetricKind):
            raise TypeError(f"kind must be a MetricKind, not {type(kind).__name__}")
        encode(name, "the name of a metric")
        if not re.fullmatch(_NAME, name) or name.startswith(_TRITONS):
            raise InvalidArgumentError(f"{name!r} cannot be the name of a metric")
        self.name = name
        self.buckets = _buckets(kind, buckets, f"metric {name!r}")
        # The text has a description on one line, and Triton writes it as it gets it.
        escaped = encode(description, "a description").replace(b"\\", rb"\\").replace(b"\n", rb"\n")
        self._metrics: dict[_Labels, Metric] = {}
        self._shared: _Shared | None = None
        self._closed = False
        with _lock:
            try:
                self._open(kind, escaped)
            except BaseException:
                self.close()
                raise

    def _open(self, kind: MetricKind, description: bytes) -> None:
        what = f"metric {self.name!r}"
        if _kinds.get(self.name, kind) is not kind:
            raise InvalidArgumentError(
                f"{what}: the name stands for a {_kinds[self.name].name} already"
            )
        fresh = _Shared(self.buckets)
        while self._shared is None:
            if self.name in _families:
                _families[self.name].holders += 1
                self._shared = _families[self.name]
            elif self.name not in _families:
                _families[self.name] = self._shared = fresh
        if self._shared.buckets != self.buckets:
            raise InvalidArgumentError(
                f"{what}: there is one with other buckets: {self._shared.buckets!r}"
            )
        arguments = self._shared.slot, int(kind), self.name.encode(), description
        was_known = self.name in _kinds
        error = None
        if not self._shared.slot[0]:
            _kinds[self.name] = kind
            error = lib.TRITONSERVER_MetricFamilyNew(*arguments)
        if error:
            if not was_known:
                _kinds.pop(self.name, None)
            raise take_error(error, what)

    def __repr__(self) -> str:
        return f"<MetricFamily {self.name!r}, {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        """Whether the family takes no calls any more."""
        return self._closed

    @property
    def kind(self) -> MetricKind:
        """What the family's metrics are.

        C: ``TRITONSERVER_GetMetricFamilyKind``
        """
        out = ffi.new("TRITONSERVER_MetricKind *")
        with _lock:
            shared = self._shared
            arguments = None if shared is None else (shared.slot[0], out)
            if arguments is not None and self._shared is not None:
                error = lib.TRITONSERVER_GetMetricFamilyKind(*arguments)
            else:
                raise self._refusal()
        check(error, f"metric {self.name!r}")
        return MetricKind(int(out[0]))

    def metric(self, labels: Mapping[str, str] | None = None, /, **more: str) -> Metric:
        """Return the metric with these labels; the first time, it is made.

        Args:
            labels: Label values by name.
            more: The same, as keywords.

        Raises:
            TypeError: A label is not a str.
            InvalidArgumentError: A label's name cannot be.
            ClosedError: The family is closed.

        C: ``TRITONSERVER_MetricNew``, ``TRITONSERVER_MetricNewWithArgs``
        """
        if labels is not None and not isinstance(labels, Mapping):
            raise TypeError(f"labels must be a mapping, not {type(labels).__name__}")
        chosen: dict[str, str] = {**(labels or {}), **more}
        what = f"metric {self.name!r}"
        for name, value in chosen.items():
            encode(name, f"{what}: the name of a label")
            encode(value, f"{what}, label {name!r}: the value")
            if not re.fullmatch(_LABEL, name) or (self.buckets and name == "le"):
                raise InvalidArgumentError(f"{what}: {name!r} cannot be the name of a label")
        key = tuple(sorted(chosen.items()))
        with _lock:
            metric = self._metrics.get(key)
            if metric is None:
                fresh = Metric(self, self._metrics, key)
                while metric is None:
                    if self._closed:
                        raise self._refusal()
                    if key not in self._metrics and not self._closed:
                        self._metrics[key] = fresh
                    metric = self._metrics.get(key)
            if not metric._is_made:  # noqa: SLF001 (here and below: it is of this family)
                self._make(metric, chosen, what)
            return metric

    def close(self) -> None:
        """Take the family and all of its metrics out of the text. Closing twice is no error.

        Those that another family of the name has as well stay.

        C: ``TRITONSERVER_MetricFamilyDelete``, ``TRITONSERVER_MetricDelete``
        """
        error = None
        with _lock:
            self._closed = True  # so that there will be no more of them
            for metric in list(self._metrics.values()):
                metric.close()
            if self._shared is not None:
                shared, self._shared = self._shared, None
                shared.holders -= 1
                if shared.holders == 0:
                    del _families[self.name]
                    if shared.slot[0]:
                        error = lib.TRITONSERVER_MetricFamilyDelete(shared.slot[0])
        check(error, f"metric {self.name!r}")

    def _refusal(self) -> ClosedError:
        return ClosedError(f"metric {self.name!r} is closed")

    def _make(self, metric: Metric, labels: Mapping[str, str], what: str) -> None:
        try:
            with parameters(labels, what) as array:
                if not self.buckets:
                    metric._make(self._shared, lib.TRITONSERVER_MetricNew, *array)
                    return
                with owned(
                    "struct TRITONSERVER_MetricArgs *",
                    lib.TRITONSERVER_MetricArgsNew,
                    lib.TRITONSERVER_MetricArgsDelete,
                    context=what,
                ) as args:
                    bounds = ffi.new("double[]", self.buckets)
                    check(
                        lib.TRITONSERVER_MetricArgsSetHistogram(args, bounds, len(self.buckets)),
                        what,
                    )
                    new = lib.TRITONSERVER_MetricNewWithArgs
                    metric._make(self._shared, new, *array, args)
        except BaseException:
            metric.close()
            raise


class Metric(Closing):
    """One metric of a family: a number with labels. `MetricFamily.metric` makes it.

    It lives as long as its family, unless it is closed; holding it is not needed.

    Attributes:
        family: The family.
        labels: Label values by name.

    C: ``TRITONSERVER_MetricNew``, ``TRITONSERVER_MetricDelete``
    """

    def __init__(self, family: MetricFamily, siblings: dict[_Labels, Metric], key: _Labels) -> None:
        """Leave this to `MetricFamily.metric`."""
        self.family = family
        self.labels = dict(key)
        self._key = key
        self._siblings = siblings  # and this, until it is closed
        self._closed = False
        self._is_made = False
        self._held: _Held | None = None
        self._table: dict[_Labels, _Held] = {}

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Metric {self.family.name!r} {self.labels!r}, {state}>"

    @property
    def closed(self) -> bool:
        """Whether the metric takes no calls any more."""
        return self._closed

    @property
    def kind(self) -> MetricKind:
        """What the metric is.

        C: ``TRITONSERVER_GetMetricKind``
        """
        out = ffi.new("TRITONSERVER_MetricKind *")
        self._call(lib.TRITONSERVER_GetMetricKind, out)
        return MetricKind(int(out[0]))

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises:
            UnsupportedError: It is a histogram: `Server.metrics` has its values.

        C: ``TRITONSERVER_MetricValue``
        """
        out = ffi.new("double *")
        self._call(lib.TRITONSERVER_MetricValue, out)
        return float(out[0])

    def increment(self, by: float = 1.0) -> None:
        """Add to a counter or gauge.

        Args:
            by: How much; of counters, not negative.

        Raises:
            InvalidArgumentError: It is negative for a counter, or not a number.
            UnsupportedError: It is a histogram.

        C: ``TRITONSERVER_MetricIncrement``
        """
        self._call(lib.TRITONSERVER_MetricIncrement, self._number(by))

    def set(self, value: float) -> None:
        """Set a gauge.

        Args:
            value: The value; NaN and infinities are values.

        Raises:
            UnsupportedError: It is no gauge.

        C: ``TRITONSERVER_MetricSet``
        """
        self._call(lib.TRITONSERVER_MetricSet, self._number(value, nan=True))

    def observe(self, value: float) -> None:
        """Count a value in a histogram: in the first bucket whose bound is not below it.

        Args:
            value: The value.

        Raises:
            InvalidArgumentError: It is not a number.
            UnsupportedError: It is no histogram.

        C: ``TRITONSERVER_MetricObserve``
        """
        self._call(lib.TRITONSERVER_MetricObserve, self._number(value))

    def close(self) -> None:
        """Take the metric out of the text. Closing twice is no error.

        C: ``TRITONSERVER_MetricDelete``
        """
        error = None
        with _lock:
            if not self._closed:
                self._closed = True
                del self._siblings[self._key]
                held, self._held = self._held, None
                if held is not None:
                    held.holders -= 1
                    if held.holders == 0:
                        del self._table[self._key]
                        if held.slot[0]:
                            error = lib.TRITONSERVER_MetricDelete(held.slot[0])
        if error:
            raise take_error(error, self._what())

    @property
    def _is_settled(self) -> bool:
        return self._held is not None or self._closed

    def _make(self, shared: _Shared | None, new: CFunction, *arguments: CData) -> None:
        """Hold the C metric of these labels, and make it where there is none.

        For `MetricFamily.metric`, under the lock.

        Args:
            shared: The family's.
            new: The C function.
            arguments: What it takes after the family.
        """
        if shared is None:  # closed meanwhile, and this with it
            return
        self._table = table = shared.metrics
        fresh = _Held("struct TRITONSERVER_Metric **")
        while not self._is_settled:
            if self._key in table and self._held is None and not self._closed:
                table[self._key].holders += 1
                self._held = table[self._key]
            elif self._key not in table and self._held is None and not self._closed:
                table[self._key] = self._held = fresh
        error = None
        held = self._held
        if held is not None:
            # Before the check: what Python makes here may have it collect garbage.
            everything = (held.slot, shared.slot[0], *arguments)
            if self._held is not None and not held.slot[0]:
                error = new(*everything)
        check(error, self._what())
        self._is_made = True

    def _call(self, function: CFunction, argument: CData) -> None:
        with _lock:
            held = self._held
            arguments = None if held is None else (held.slot[0], argument)
            if arguments is not None and self._held is not None:
                error = function(*arguments)
            else:
                raise ClosedError(f"{self._what()} is closed")
        if error:
            raise take_error(error, self._what())

    def _what(self) -> str:
        labels = f" {self.labels!r}" if self.labels else ""
        return f"metric {self.family.name!r}{labels}"

    def _number(self, value: float, *, nan: bool = False) -> float:
        number = _real(value, self._what())
        if math.isnan(number) and not nan:
            raise InvalidArgumentError(f"{self._what()}: NaN cannot be counted")
        return number


def metrics_text(server: CData, context: str) -> str:
    """Return the metrics of the process as Prometheus text.

    Args:
        server: An open server's handle.
        context: What is being done, for errors.

    C: ``TRITONSERVER_ServerMetrics``, ``TRITONSERVER_MetricsFormatted``,
    ``TRITONSERVER_MetricsDelete``
    """
    with owned(
        "struct TRITONSERVER_Metrics *",
        lambda out: lib.TRITONSERVER_ServerMetrics(server, out),
        lib.TRITONSERVER_MetricsDelete,
        context=context,
    ) as metrics:
        base = ffi.new("const char **")
        size = ffi.new("size_t *")
        kind = int(MetricFormat.PROMETHEUS)
        check(lib.TRITONSERVER_MetricsFormatted(metrics, kind, base, size), context)
        text: bytes = ffi.buffer(base[0], size[0])[:]
        return text.decode("utf-8", "replace")  # names of models are those of folders: any bytes


def _buckets(kind: MetricKind, buckets: Iterable[float], what: str) -> tuple[float, ...]:
    bounds = tuple(_real(bound, f"{what}: a bucket's bound") for bound in buckets)
    if kind is not MetricKind.HISTOGRAM:
        if bounds:
            raise InvalidArgumentError(f"{what}: only a histogram has buckets")
    elif not bounds:
        raise InvalidArgumentError(f"{what}: a histogram needs buckets")
    for i, bound in enumerate(bounds):
        if not math.isfinite(bound) or (i > 0 and bound <= bounds[i - 1]):
            raise InvalidArgumentError(f"{what}: buckets must ascend and be finite: {bounds!r}")
    return bounds


def _real(value: object, what: str) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(f"{what} does not fit into 64 bits: {value!r}") from None
