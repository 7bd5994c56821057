"""Time functions side by side in one process: what is asserted is the ratio of their medians, never seconds."""
import gc
import statistics
import time


def seconds(function):
    gc.collect()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(*functions, rounds=15):
    """Median time of each function; they take turns, after one call of each that is not counted."""
    for function in functions:
        function()
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, record in zip(functions, times):
            record.append(seconds(function))
    return [statistics.median(record) for record in times]


def ratio(ours, theirs, rounds=15):
    """Median time of `ours` over median time of `theirs`."""
    mine, other = interleaved(ours, theirs, rounds=rounds)
    return mine / other
