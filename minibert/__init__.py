"""BERT from scratch, in notebooks that prove every line."""
__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import BertConfig as BertConfig
    from .data.corpus import Corpus as Corpus
    from .data.documents import load_documents as load_documents
    from .evaluation import evaluate as evaluate
    from .gpt import GPTForCausalLM as GPTForCausalLM, generate as generate
    from .heads import BertForPreTraining as BertForPreTraining, fill_mask as fill_mask
    from .model import BertModel as BertModel
    from .pairs import PairSampler as PairSampler
    from .t5 import T5ForConditionalGeneration as T5ForConditionalGeneration
    from .tokenizer import WordPieceTokenizer as WordPieceTokenizer
    from .train.recipe import TrainingConfig as TrainingConfig
    from .train.trainer import pretrain as pretrain
    from .training import fit as fit
    from .tuning.predict import embed as embed, predict as predict
    from .weights import (
        from_hf as from_hf, load_pretrained as load_pretrained,
        save_pretrained as save_pretrained, to_hf as to_hf)

_MODULES = {
    "config": "BertConfig", "tokenizer": "WordPieceTokenizer", "model": "BertModel",
    "heads": "BertForPreTraining fill_mask", "gpt": "GPTForCausalLM generate",
    "t5": "T5ForConditionalGeneration", "data.corpus": "Corpus",
    "data.documents": "load_documents", "pairs": "PairSampler",
    "train.recipe": "TrainingConfig", "training": "fit", "train.trainer": "pretrain",
    "evaluation": "evaluate", "tuning.predict": "predict embed",
    "weights": "load_pretrained save_pretrained from_hf to_hf",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = [*_HOME]  # noqa: PLE0604


def __getattr__(name: str):
    "A public name, whose module is imported when it is first asked for."
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]: return sorted([*globals(), *_HOME])
