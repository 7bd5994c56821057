"""What right answers to the exercises of chapter 03 must satisfy."""
import json

import torch

from transformer_course.toolbox.exercises import Case, same

__all__ = ["EXERCISES"]


def _file(header, data=b"", length=None):
    """The bytes of a safetensors file with this header."""
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(shape, start, end):
    return {"dtype": "U8", "shape": shape, "data_offsets": [start, end]}


def _given(*values, dtype=torch.float32):
    """A tensor that refuses to be changed in place."""
    with torch.inference_mode():
        return torch.tensor(values, dtype=dtype)


def _mean_is(values, dtype):
    def judge(outcome):
        return list(outcome) == ["w"] and outcome["w"].dtype == dtype and same(outcome["w"], values)
    return judge


_ONE = _file({"__metadata__": {"format": "pt"}, "w": _entry([2, 3], 0, 6), "b": _entry([], 6, 7)}, bytes(7))

EXERCISES = {
    "03.bytes": [
        Case("a tied tensor is stored once, and each number takes as many bytes as its kind has", expected=3608),
    ],
    "03.shapes": [
        Case("each tensor's shape is given as a tuple, by name, and the metadata is not taken for a tensor",
             args=(_ONE,), expected=lambda out: out == {"w": (2, 3), "b": ()}),
        Case("the numbers are not needed", args=(_ONE[:-7],), expected=lambda out: out == {"w": (2, 3), "b": ()}),
        Case("a file without tensors has no shapes", args=(_file({}),), expected=lambda out: out == {}),
        Case("a file that ends within the header is refused", args=(_ONE[:40],), raises=ValueError),
        Case("a file that ends within the first eight bytes is refused", args=(b"\x05\x00\x00",), raises=ValueError),
        Case("a header that is said to be longer than the file is refused", args=(_file({}, length=2**40),), raises=ValueError),
    ],
    "03.inside": [
        Case("a plain name is a file of the folder", args=("model-00001-of-00002.safetensors",), expected=True),
        Case("two dots within a name lead nowhere", args=("model..v2.safetensors",), expected=True),
        Case("`..` leads out", args=("../model.safetensors",), expected=False),
        Case("an absolute path leads out", args=("/etc/model.safetensors",), expected=False),
        Case("a folder on the way is refused, whatever follows", args=("a/model.safetensors",), expected=False),
        Case("Windows' separator counts too", args=("..\\model.safetensors",), expected=False),
        Case("a drive leads out", args=("C:model.safetensors",), expected=False),
        Case("the folder above is no file of the folder", args=("..",), expected=False),
        Case("the folder itself is no file of the folder", args=(".",), expected=False),
        Case("a file of another kind lies in the folder too", args=("vocab.txt",), expected=True),
        Case("no name is no file", args=("",), expected=False),
    ],
    "03.average": [
        Case("each number is the mean of its numbers, in float32", args=([{"w": _given(0.1, 2.0)}, {"w": _given(0.3, 5.0)}],),
             expected=_mean_is([0.2, 3.5], torch.float32)),
        Case("all checkpoints have the same say", args=([{"w": _given(0.0)}, {"w": _given(0.0)}, {"w": _given(3.0)}],),
             expected=_mean_is([1.0], torch.float32)),
        Case("half precision is averaged in float32 and comes back as it was",
             args=([{"w": _given(256.0, dtype=torch.bfloat16)}] + [{"w": _given(1.0, dtype=torch.bfloat16)}] * 255,),
             expected=_mean_is([2.0], torch.bfloat16)),
        Case("a name that one of them lacks is refused", args=([{"w": _given(1.0), "v": _given(1.0)}, {"w": _given(1.0)}],),
             raises=ValueError),
        Case("as many names, but not the same, are refused", args=([{"w": _given(1.0), "v": _given(1.0)}, {"w": _given(1.0), "u": _given(1.0)}],),
             raises=ValueError),
        Case("a name that only a later one has is refused", args=([{"w": _given(1.0)}, {"w": _given(1.0), "v": _given(1.0)}],),
             raises=ValueError),
    ],
}
