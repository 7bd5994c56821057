from .masks import causal_mask as causal_mask, combine_masks as combine_masks, key_mask as key_mask, padding_mask as padding_mask
from .multi_head_attention import Cache as Cache, MultiHeadAttention as MultiHeadAttention, merge_heads as merge_heads, record_attention as record_attention, split_heads as split_heads, xavier_init as xavier_init
from .self_attention import scaled_dot_product_attention as scaled_dot_product_attention
