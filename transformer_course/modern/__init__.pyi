from .attention_variants import GroupedQueryAttention as GroupedQueryAttention, pool_kv_heads as pool_kv_heads, sliding_window_mask as sliding_window_mask, windowed_attention as windowed_attention
from .decoder_only import CausalLM as CausalLM, CausalLMConfig as CausalLMConfig, lay_by_columns as lay_by_columns
from .kv_cache import KVCache as KVCache, LayerCache as LayerCache, kv_cache_bytes as kv_cache_bytes
from .normalization import RMSNorm as RMSNorm
from .position_embeddings import LearnedPositionalEmbedding as LearnedPositionalEmbedding, RelativePositionBias as RelativePositionBias, RotaryEmbedding as RotaryEmbedding, alibi_bias as alibi_bias, alibi_slopes as alibi_slopes, apply_rotary_embedding as apply_rotary_embedding, half_to_interleaved as half_to_interleaved, interleaved_to_half as interleaved_to_half, rotary_frequencies as rotary_frequencies
from .t5 import ByteTokenizer as ByteTokenizer, SPECIAL as SPECIAL, T5 as T5, T5Config as T5Config, corrupt_spans as corrupt_spans, random_spans as random_spans, restore_spans as restore_spans
