"""Results kept by the content of their arguments: never a stale one, never more than asked for."""

from types import SimpleNamespace

import torch

from immunize import memoize as module


def counting(size):
    calls = []

    @module.memoize(size)
    def double(x, factor=2):
        calls.append(factor)
        return factor * x

    return double, calls


def test_the_same_content_is_computed_once_whatever_object_holds_it():
    double, calls = counting(2)
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    first = double(x)
    assert double(x.clone()) is first
    assert double(x.T.contiguous().T) is first, "a view with other strides holds the same numbers"
    assert calls == [2]


def test_content_shape_dtype_and_other_arguments_tell_results_apart():
    double, calls = counting(8)
    x = torch.zeros(2, 3, dtype=torch.float64)
    for other in (x, x.reshape(3, 2), x.to(torch.float32), x.to(torch.bfloat16), x.to(torch.float16), x + 1e-300):
        assert torch.equal(double(other), 2 * other)
    assert torch.equal(double(x, factor=5), 5 * x)
    assert len(calls) == 7
    x[1] = 7  # written into
    assert torch.equal(double(x), 2 * x)


def test_only_the_latest_are_kept():
    double, calls = counting(2)
    a, b, c = (torch.full((1,), value, dtype=torch.float64) for value in (1.0, 2.0, 3.0))
    for x in (a, b, a, c, a):  # b is the one asked for longest ago when c comes
        double(x)
    assert len(calls) == 3
    double(b)
    assert len(calls) == 4


def test_memory_goes_back_unless_the_process_was_told_to_keep_it(monkeypatch):
    trimmed = []
    monkeypatch.setattr(module.ctypes, "pythonapi", SimpleNamespace(malloc_trim=trimmed.append))
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    module.give_back_memory()
    assert trimmed == [0]
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    module.give_back_memory()
    assert trimmed == [0]
