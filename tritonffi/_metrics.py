# SPDX-License-Identifier: Apache-2.0
"""Metrics: Triton's as text, and families of one's own beside them.

The registry belongs to the process, not to a server: families live on when a server is closed.
Triton leaves three things to its callers, which are taken care of here:

- Metrics must be deleted before their family, so a family knows its metrics and closes them first.
- Two C families of one name share metrics without knowing of each other, and the first delete takes
  them from under the other. So there is one for each name, however often it is asked for.
- A name of Triton's own would share Triton's own metrics in the same way, so it is refused.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tritonffi._call import check, encode, out_int, owned, parameters
from tritonffi._closing import Closing
from tritonffi._enums import MetricFormat, MetricKind
from tritonffi._errors import ClosedError, InvalidArgumentError
from tritonffi._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritonffi._native import CData

_NAME = r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*"
_TRITONS = "nv_"

_Labels: TypeAlias = "tuple[tuple[str, str], ...]"


class _Shared:
    """The C family behind all families of one name, and its C metrics with their holders.

    Attributes:
        native: The ``TRITONSERVER_MetricFamily *``.
        buckets: Of all its metrics.
        holders: How many families are open.
        metrics: The ``TRITONSERVER_Metric *`` and how many are open, by labels.
    """

    def __init__(self, native: CData, buckets: tuple[float, ...]) -> None:
        self.native = native
        self.buckets = buckets
        self.holders = 0
        self.metrics: dict[_Labels, tuple[CData, int]] = {}

    def take(self, labels: _Labels, make: Callable[[], CData]) -> CData:
        """Hold a metric once more."""
        native, holders = self.metrics[labels] if labels in self.metrics else (make(), 0)
        self.metrics[labels] = (native, holders + 1)
        return native

    def drop(self, labels: _Labels, what: str) -> None:
        """Hold it once less; the last one deletes it."""
        native, holders = self.metrics[labels]
        if holders == 1:
            check(lib.TRITONSERVER_MetricDelete(native), what)
            del self.metrics[labels]
        else:
            self.metrics[labels] = (native, holders - 1)


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
        with _lock:
            shared = _families.get(name)
            if _kinds.get(name, kind) is not kind:
                raise InvalidArgumentError(
                    f"metric {name!r}: the name stands for a {_kinds[name].name} already"
                )
            if shared is None:
                native = _new_family(kind, name, escaped)
                shared = _families[name] = _Shared(native, self.buckets)
                _kinds[name] = kind
            elif shared.buckets != self.buckets:
                raise InvalidArgumentError(
                    f"metric {name!r}: there is one with other buckets: {shared.buckets!r}"
                )
            shared.holders += 1
        self._shared = shared
        self._closed = False

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
        with _lock:
            native = self._handle()
            kind = out_int(
                "TRITONSERVER_MetricKind",
                lib.TRITONSERVER_GetMetricFamilyKind,
                native,
                context=f"metric {self.name!r}",
            )
            return MetricKind(kind)

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
            native = self._handle()
            if key not in self._metrics:
                made = self._shared.take(key, lambda: self._make(native, chosen, what))
                self._metrics[key] = Metric(self, made, key)
            return self._metrics[key]

    def close(self) -> None:
        """Take the family and all of its metrics out of the text. Closing twice is no error.

        Those that another family of the name has as well stay.

        C: ``TRITONSERVER_MetricFamilyDelete``, ``TRITONSERVER_MetricDelete``
        """
        with _lock:
            if self._closed:
                return
            for metric in list(self._metrics.values()):
                metric.close()
            if self._shared.holders == 1:
                native = self._shared.native
                check(lib.TRITONSERVER_MetricFamilyDelete(native), f"metric {self.name!r}")
                del _families[self.name]
            self._shared.holders -= 1
            self._closed = True

    def _handle(self) -> CData:
        """Return the handle, which is used under the lock."""
        if self._closed:
            raise ClosedError(f"metric {self.name!r} is closed")
        return self._shared.native

    def forget(self, labels: _Labels, what: str) -> None:
        """Let one of its metrics go; for `Metric.close`, under the lock."""
        self._shared.drop(labels, what)
        del self._metrics[labels]

    def _make(self, family: CData, labels: Mapping[str, str], what: str) -> CData:
        out = ffi.new("struct TRITONSERVER_Metric **")
        with parameters(labels, what) as (array, count):
            if not self.buckets:
                check(lib.TRITONSERVER_MetricNew(out, family, array, count), what)
                return out[0]
            with owned(
                "struct TRITONSERVER_MetricArgs *",
                lib.TRITONSERVER_MetricArgsNew,
                lib.TRITONSERVER_MetricArgsDelete,
                context=what,
            ) as args:
                bounds = ffi.new("double[]", self.buckets)
                check(
                    lib.TRITONSERVER_MetricArgsSetHistogram(args, bounds, len(self.buckets)), what
                )
                check(lib.TRITONSERVER_MetricNewWithArgs(out, family, array, count, args), what)
        return out[0]


class Metric(Closing):
    """One metric of a family: a number with labels. `MetricFamily.metric` makes it.

    It lives as long as its family, unless it is closed; holding it is not needed.

    Attributes:
        family: The family.
        labels: Label values by name.

    C: ``TRITONSERVER_MetricNew``, ``TRITONSERVER_MetricDelete``
    """

    def __init__(self, family: MetricFamily, native: CData, key: _Labels) -> None:
        """Leave this to `MetricFamily.metric`."""
        self.family = family
        self.labels = dict(key)
        self._key = key
        self._native: CData = native

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Metric {self.family.name!r} {self.labels!r}, {state}>"

    @property
    def closed(self) -> bool:
        """Whether the metric takes no calls any more."""
        return self._native is None

    @property
    def kind(self) -> MetricKind:
        """What the metric is.

        C: ``TRITONSERVER_GetMetricKind``
        """
        with _lock:
            native = self._handle()
            kind = out_int(
                "TRITONSERVER_MetricKind",
                lib.TRITONSERVER_GetMetricKind,
                native,
                context=self._what(),
            )
            return MetricKind(kind)

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises:
            UnsupportedError: It is a histogram: `Server.metrics` has its values.

        C: ``TRITONSERVER_MetricValue``
        """
        out = ffi.new("double *")
        with _lock:
            native = self._handle()
            check(lib.TRITONSERVER_MetricValue(native, out), self._what())
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
        amount = self._number(by)
        with _lock:
            native = self._handle()
            check(lib.TRITONSERVER_MetricIncrement(native, amount), self._what())

    def set(self, value: float) -> None:
        """Set a gauge.

        Args:
            value: The value; NaN and infinities are values.

        Raises:
            UnsupportedError: It is no gauge.

        C: ``TRITONSERVER_MetricSet``
        """
        number = self._number(value, nan=True)
        with _lock:
            native = self._handle()
            check(lib.TRITONSERVER_MetricSet(native, number), self._what())

    def observe(self, value: float) -> None:
        """Count a value in a histogram: in the first bucket whose bound is not below it.

        Args:
            value: The value.

        Raises:
            InvalidArgumentError: It is not a number.
            UnsupportedError: It is no histogram.

        C: ``TRITONSERVER_MetricObserve``
        """
        number = self._number(value)
        with _lock:
            native = self._handle()
            check(lib.TRITONSERVER_MetricObserve(native, number), self._what())

    def close(self) -> None:
        """Take the metric out of the text. Closing twice is no error.

        C: ``TRITONSERVER_MetricDelete``
        """
        with _lock:
            if self._native is not None:
                self.family.forget(self._key, self._what())
                self._native = None

    def _what(self) -> str:
        labels = f" {self.labels!r}" if self.labels else ""
        return f"metric {self.family.name!r}{labels}"

    def _handle(self) -> CData:
        """Return the handle, which is used under the lock."""
        if self._native is None:
            raise ClosedError(f"{self._what()} is closed")
        return self._native

    def _number(self, value: float, *, nan: bool = False) -> float:
        number = _real(value, self._what())
        if math.isnan(number) and not nan:
            raise InvalidArgumentError(f"{self._what()}: NaN cannot be counted")
        return number


def _new_family(kind: MetricKind, name: str, description: bytes) -> CData:
    out = ffi.new("struct TRITONSERVER_MetricFamily **")
    error = lib.TRITONSERVER_MetricFamilyNew(out, int(kind), name.encode(), description)
    check(error, f"metric {name!r}")
    return out[0]


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
