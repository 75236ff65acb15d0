"""Results kept by the content of their arguments: never a stale one, never more than asked for."""

from unittest.mock import Mock

import torch

from immunize import memoize as module


def counting(size):
    double = Mock(side_effect=lambda x, factor=2: factor * x)
    return module.memoize(size)(double), double


def test_the_same_content_is_computed_once_whatever_object_holds_it():
    double, calls = counting(2)
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    first = double(x)
    assert double(x.clone()) is first
    assert double(x.T.contiguous().T) is first, "a view with other strides holds the same numbers"
    assert calls.call_count == 1


def test_content_shape_dtype_and_other_arguments_tell_results_apart():
    double, calls = counting(8)
    x = torch.zeros(2, 3, dtype=torch.float64)
    for other in (x, x.reshape(3, 2), x.to(torch.float32), x.to(torch.bfloat16), x.to(torch.float16), x + 1e-300):
        assert torch.equal(double(other), 2 * other)
    assert torch.equal(double(x, factor=5), 5 * x)
    assert calls.call_count == 7
    x[1] = 7  # written into
    assert torch.equal(double(x), 2 * x)


def test_only_the_latest_are_kept():
    double, calls = counting(2)
    a, b, c = (torch.full((1,), value, dtype=torch.float64) for value in (1.0, 2.0, 3.0))
    for x in (a, b, a, c, a):  # b is the one asked for longest ago when c comes
        double(x)
    assert calls.call_count == 3
    double(b)
    assert calls.call_count == 4


def test_memory_goes_back_unless_the_process_was_told_to_keep_it(monkeypatch):
    library = Mock()
    monkeypatch.setattr(module.ctypes, "pythonapi", library)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    module.give_back_memory()
    library.malloc_trim.assert_called_once_with(0)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    module.give_back_memory()
    library.malloc_trim.assert_called_once_with(0)
