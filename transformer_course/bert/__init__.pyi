from .distillation import DistilBert as DistilBert, distillation_loss as distillation_loss, kl_divergence as kl_divergence
from .fine_tuning import BertForQuestionAnswering as BertForQuestionAnswering, BertForSequenceClassification as BertForSequenceClassification, BertForTokenClassification as BertForTokenClassification, best_span as best_span, encode_words as encode_words, pad_labels as pad_labels, second_text as second_text, word_labels as word_labels
from .inputs import BertEmbeddings as BertEmbeddings, BertInputs as BertInputs, encode_pair as encode_pair, pad_batch as pad_batch
from .limits import Int8Linear as Int8Linear, quantize_int8 as quantize_int8, quantize_rows as quantize_rows, window_global_mask as window_global_mask
from .model import Bert as Bert, BertConfig as BertConfig, Pooler as Pooler
from .pretraining import BertForPreTraining as BertForPreTraining, MaskedLMHead as MaskedLMHead, PRETRAINING_HEADS as PRETRAINING_HEADS, mask_tokens as mask_tokens, next_sentence_pairs as next_sentence_pairs
from .roberta import Roberta as Roberta, dynamic_mask as dynamic_mask, encode_roberta_pair as encode_roberta_pair, roberta_positions as roberta_positions
from .sentence_embeddings import POOLS as POOLS, SentenceEncoder as SentenceEncoder, book_glossary as book_glossary, cls_pool as cls_pool, max_pool as max_pool, mean_pool as mean_pool
