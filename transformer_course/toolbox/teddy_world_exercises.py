"""What right answers to the exercises of chapter 02 must satisfy."""
import unicodedata
from functools import cache

from transformer_course.toolbox.exercises import Case
from transformer_course.toolbox.teddy_world import TeddyWorld

__all__ = ["EXERCISES"]


@cache
def _sentences(sentiment):
    return [s.english for s in TeddyWorld(2).sentences(3_000) if s.sentiment == sentiment][:300]


class _Feeling(Case):
    """Applies the reader's function to many sentences; the report names the first that it gets wrong."""

    def problem(self, answer):
        if not callable(answer):
            return f"a function is expected, not {type(answer).__name__}"
        sentences, wrong = _sentences(self.expected), []
        for tokens in sentences:
            try:
                given = answer(tokens)
            except Exception as error:  # whatever the reader's code raises is reported, not passed on
                return f"on {' '.join(tokens)!r} it raised {type(error).__name__}: {error}"
            if not isinstance(given, str) or given != self.expected:
                wrong.append((tokens, given))
        if len(wrong) <= 0.1 * len(sentences):
            return None
        tokens, given = wrong[0]
        return (f"it got {len(wrong)} of {len(sentences)} {self.expected} sentences wrong; "
                f"{' '.join(tokens)!r} was called {given!r}")


EXERCISES = {
    "02.towards": [
        Case("the forms are those of 서울, 런던, 파리 and 숲, in this order", expected=["로", "으로", "로", "으로"]),
    ],
    "02.topic": [
        Case("a final consonant takes 은", args=("곰",), expected="곰은"),
        Case("a final vowel takes 는", args=("토끼",), expected="토끼는"),
        Case("ㄹ is a consonant like any other here", args=("서울",), expected="서울은"),
        Case("only the last syllable counts", args=("감자",), expected="감자는"),
        Case("a decomposed noun gives the composed form", args=(unicodedata.normalize("NFD", "곰"),), expected="곰은"),
        Case("a decomposed noun that ends in a vowel takes 는", args=(unicodedata.normalize("NFD", "여우"),), expected="여우는"),
        Case("a noun in Latin letters is refused", args=("bear",), raises=ValueError),
        Case("a lone letter is refused", args=("ㄱ",), raises=ValueError),
        Case("an empty noun is refused", args=("",), raises=ValueError),
    ],
    "02.meet": [
        Case("le elides before a vowel", args=(["le", "ours"],), expected=["l'", "ours"]),
        Case("la elides before a silent h", args=(["la", "histoire"],), expected=["l'", "histoire"]),
        Case("an accent does not protect a vowel", args=(["la", "école"],), expected=["l'", "école"]),
        Case("an aspirated h keeps le whole", args=(["le", "hérisson"],), expected=["le", "hérisson"]),
        Case("de le is du before a consonant", args=(["près", "de", "le", "parc"],), expected=["près", "du", "parc"]),
        Case("elision comes before contraction", args=(["près", "de", "le", "arbre"],), expected=["près", "de", "l'", "arbre"]),
        Case("an aspirated h contracts", args=(["de", "le", "hérisson"],), expected=["du", "hérisson"]),
        Case("à les is aux, whatever follows", args=(["à", "les", "ours"],), expected=["aux", "ours"]),
        Case("a noun that looks like nothing special stays", args=(["une", "ourse", "danse"],), expected=["une", "ourse", "danse"]),
        Case("the last word stays", args=(["que"],), expected=["que"]),
    ],
    "02.projective": [
        Case("a chain is projective", args=((0, 1, 2),), expected=True),
        Case("arcs over a subtree are projective", args=((3, 1, 0, 3),), expected=True),
        Case("two crossing arcs are not", args=((3, 4, 0, 3),), expected=False),
        Case("an arc over the root is not", args=((3, 0, 2),), expected=False),
        Case("crossing may be to the left of the head", args=((0, 4, 1, 1),), expected=False),
        Case("a single word is projective", args=((0,),), expected=True),
    ],
    "02.feeling": [
        _Feeling("at least 90 % of the positive sentences are found", expected="positive"),
        _Feeling("at least 90 % of the negative sentences are found", expected="negative"),
        _Feeling("at least 90 % of the neutral sentences are found", expected="neutral"),
    ],
}
