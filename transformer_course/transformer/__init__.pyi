from .decoder import Decoder as Decoder, DecoderLayer as DecoderLayer
from .decoding import Hypothesis as Hypothesis, beam_search as beam_search, greedy_search as greedy_search, next_token_probabilities as next_token_probabilities, parent_rows as parent_rows, sample as sample
from .encoder import Encoder as Encoder, EncoderLayer as EncoderLayer
from .feed_forward import ACTIVATIONS as ACTIVATIONS, FeedForward as FeedForward, GatedFeedForward as GatedFeedForward, SwiGLU as SwiGLU
from .positional_encoding import SinusoidalPositionalEncoding as SinusoidalPositionalEncoding, shift_matrix as shift_matrix, sinusoidal_encoding as sinusoidal_encoding
from .residual_and_norm import LayerNorm as LayerNorm, Residual as Residual
from .training import cross_entropy as cross_entropy, noam_schedule as noam_schedule, smooth_labels as smooth_labels
from .transformer import TokenEmbedding as TokenEmbedding, Transformer as Transformer, TransformerConfig as TransformerConfig, shift_right as shift_right
from .translation import CrossAttention as CrossAttention, SMALL as SMALL, Translator as Translator, teddy_translator as teddy_translator, train_translator as train_translator, translate as translate
