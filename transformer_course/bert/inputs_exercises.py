"""What right answers to the exercises of chapter 36 must satisfy."""
from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _plain(answer):
    """Tuples and tensors as lists, and what is neither True nor False as a number."""
    if hasattr(answer, "tolist"):
        answer = answer.tolist()
    return [_plain(part) for part in answer] if isinstance(answer, (list, tuple)) else answer


def _equals(*wanted):
    return lambda answer: _plain(answer) == _plain(wanted)


def _taken_in_turn(n, m, room):
    while n + m > room:
        n, m = (n - 1, m) if n > m else (n, m - 1)
    return n, m


def _google(says, n, m, room):
    return Case(says, args=(n, m, room), expected=_equals(*_taken_in_turn(n, m, room)))


def _all_sizes(lengths):
    sizes = [(n, m, room) for n in range(10) for m in range(10) for room in range(14)]
    return all(_plain(lengths(*size)) == list(_taken_in_turn(*size)) for size in sizes)


def _window_case(says, question, context, max_length, overlap):
    room = max_length - question - 3
    asked, read = list(range(10, 10 + question)), list(range(100, 100 + context))

    def holds(found):
        ids, starts = [list(row) for row, _ in found], [start for _, start in found]
        parts = [row[question + 2:-1] for row in ids]
        framed = all(row == [1, *asked, 2, *part, 2] and len(row) <= max_length for row, part in zip(ids, parts))
        placed = all(part == read[start:start + len(part)] for part, start in zip(parts, starts))
        full = all(len(part) == room for part in parts[:-1])
        shared = all(start + room - after == overlap for start, after in zip(starts, starts[1:]))
        ends = [start + len(part) for part, start in zip(parts, starts)]
        return (framed and placed and full and shared and bool(starts) and starts[0] == 0 and ends[-1] == context
                and context not in ends[:-1])
    return Case(says, args=(asked, read, max_length, overlap, 1, 2), expected=holds)


_EXAMPLES = [[2, 7, 8, 3], [2, 3], [2, 9, 3]]

EXERCISES = {
    "36.count": [Case("three tables and the norm's two rows are counted", expected=31_782_912)],
    "36.segments": [
        Case("a single text has segment 0 throughout", args=([2, 7, 8, 3], 3, 0), expected=[0, 0, 0, 0]),
        Case("the first [SEP] has segment 0, the second text and its [SEP] have 1", args=([2, 7, 3, 8, 9, 3], 3, 0), expected=[0, 0, 0, 1, 1, 1]),
        Case("padding behind a pair has segment 0", args=([2, 7, 3, 8, 3, 0, 0], 3, 0), expected=[0, 0, 0, 1, 1, 0, 0]),
        Case("padding behind a single text has segment 0", args=([2, 7, 3, 0, 0], 3, 0), expected=[0] * 5),
        Case("empty texts are texts", args=([2, 3, 3, 0], 3, 0), expected=[0, 0, 1, 0]),
        Case("the ids of [SEP] and [PAD] may be others", args=([0, 7, 2, 8, 2, 1], 2, 1), expected=[0, 0, 0, 1, 1, 0]),
    ],
    "36.left": [
        Case("ids stand on the right, masks are truth values, positions begin at the first real token", args=(_EXAMPLES,),
             expected=_equals([[2, 7, 8, 3], [0, 0, 2, 3], [0, 2, 9, 3]],
                              [[True] * 4, [False, False, True, True], [False, True, True, True]],
                              [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 1, 2]])),
        Case("the id of padding can be chosen", args=([[5, 6], [7]],), kwargs={"pad_id": 1},
             expected=_equals([[5, 6], [1, 7]], [[True, True], [False, True]], [[0, 1], [0, 0]])),
        Case("a batch of one text needs no padding", args=([[5, 6]],), expected=_equals([[5, 6]], [[True, True]], [[0, 1]])),
    ],
    "36.google": [
        _google("what fits stays", 3, 4, 7),
        _google("the longer text is cut down to the other", 3, 9, 7),
        _google("of two equal texts the second loses the odd token", 8, 8, 7),
        _google("so it does where it was the longer one", 5, 9, 7),
        _google("an empty text stays empty", 0, 9, 4),
        Case("all sizes up to 9 and all rooms up to 13 come out as from the loop", expected=_all_sizes),
    ],
    "36.windows": [
        _window_case("a context that fits makes one window", 2, 4, 10, 1),
        _window_case("windows are full, overlap by as much as asked, and end with the context", 3, 17, 11, 2),
        _window_case("without overlap the parts lie side by side", 1, 9, 8, 0),
        _window_case("no window follows one that has reached the end", 2, 8, 10, 2),
        _window_case("an empty context makes one window", 2, 0, 10, 2),
    ],
}
