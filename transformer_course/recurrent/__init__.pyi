from .lstm import LSTM as LSTM, LSTMCell as LSTMCell
from .rnn import RNN as RNN, RNNCell as RNNCell
from .seq2seq_attention import AdditiveAttention as AdditiveAttention, DotProductAttention as DotProductAttention, Memory as Memory, SPECIAL_TOKENS as SPECIAL_TOKENS, Seq2Seq as Seq2Seq, Translation as Translation, TranslationBatch as TranslationBatch, translate_tokens as translate_tokens, translation_batches as translation_batches, translation_loss as translation_loss
