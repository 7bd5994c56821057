"""Make the course's Hangul font: NanumGothic, cut down to the 2,350 syllables of KS X 1001, Latin and punctuation.

    python tools/make_font.py /usr/share/fonts/truetype/nanum/NanumGothic.ttf

The Open Font License reserves the name Nanum, so that the subset carries another one.
"""
import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

OUT = Path(__file__).resolve().parent.parent / "transformer_course/toolbox/fonts/CourseHangul.ttf"
NAME = "Course Hangul"


def characters():
    """KS X 1001's Hangul (two bytes from 0xB0A1 to 0xC8FE in EUC-KR), jamo, and what labels need besides."""
    hangul = {bytes([high, low]).decode("euc-kr") for high in range(0xB0, 0xC9) for low in range(0xA1, 0xFF)}
    jamo = set(map(chr, range(0x3131, 0x3164)))
    latin = set(map(chr, [*range(0x20, 0x7F), *range(0xA0, 0x100)])) | set("Œœ–—‘’“”…·→←↑↓×−≤≥")
    return hangul | jamo | latin


def main(source):
    options = subset.Options(hinting=False, layout_features=[], name_IDs=[0, 1, 2, 3, 4, 6, 13, 14], notdef_outline=True)
    font = TTFont(source)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=map(ord, characters()))
    cutter.subset(font)
    for record in font["name"].names:
        if record.nameID in (1, 4):
            record.string = NAME
        elif record.nameID in (3, 6):
            record.string = NAME.replace(" ", "") + "-Regular"
    OUT.parent.mkdir(exist_ok=True)
    font.save(OUT)
    print(f"{OUT}: {OUT.stat().st_size / 1024:.0f} KB, {len(font.getBestCmap())} characters")


if __name__ == "__main__":
    main(*sys.argv[1:])
