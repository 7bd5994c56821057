from .bpe import BPETokenizer as BPETokenizer, from_byte_symbols as from_byte_symbols, pretokenize as pretokenize, to_byte_symbols as to_byte_symbols
from .unigram import UnigramTokenizer as UnigramTokenizer
from .word2vec import CBOW as CBOW, SkipGram as SkipGram, cbow_examples as cbow_examples, cbow_pairs as cbow_pairs, draw_negatives as draw_negatives, keep_probability as keep_probability, negative_sampling_loss as negative_sampling_loss, noise_distribution as noise_distribution, skipgram_examples as skipgram_examples, skipgram_pairs as skipgram_pairs, subsample as subsample, train as train
from .word_vectors import analogy as analogy, cosine_similarity as cosine_similarity, nearest_neighbors as nearest_neighbors, one_hot as one_hot
from .wordpiece import BERT_SPECIAL_TOKENS as BERT_SPECIAL_TOKENS, WordPieceTokenizer as WordPieceTokenizer, longest_match as longest_match
from .words_and_characters import CharacterTokenizer as CharacterTokenizer, TokenizerComparison as TokenizerComparison, TokenizerRow as TokenizerRow, Vocabulary as Vocabulary, WordTokenizer as WordTokenizer, compare_tokenizers as compare_tokenizers, oov_rate as oov_rate
