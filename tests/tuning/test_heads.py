"""The heads for a label, a number and tags: logits, losses and every gradient are Hugging Face's, in float64."""
import warnings

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.core.seeds import seeded
from minibert.finetuning import BertClassifier
from minibert.nn.classifier_parts import make_encoder
from minibert.config import BertConfig
from minibert.parity import assert_same, randomise_
from minibert.weights import from_hf, load_pretrained, save_pretrained, to_hf

THEIRS = {("bert", "cls"): hf.BertForSequenceClassification, ("bert", "none"): hf.BertForTokenClassification,
          ("roformer", "cls"): hf.RoFormerForSequenceClassification, ("roformer", "none"): hf.RoFormerForTokenClassification}
NAMES = {"label": ("a", "b", "c"), "number": ("stars",)}


def made(kind="bert", pooling="cls", names=("a", "b", "c"), layers=2, heads=3, seed=1):
    config = BertConfig(model_type=kind, vocab_size=101, hidden_size=24, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=37,
                        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return randomise_(BertClassifier(make_encoder(config, seeded(seed)), names, pooling, generator=seeded(seed))).double().eval()


def drawn(pooling, names, seed, B=4, S=9):
    "A batch with padding, two segments and labels, some of them ignored where tokens have them."
    generator = seeded(seed, 7)
    real = torch.randint(2, S + 1, (B, 1), generator=generator)
    mask = (torch.arange(S) < real).long()
    shape = (B, S) if pooling == "none" else (B,)
    labels = torch.randn(shape, generator=generator).double() if len(names) == 1 else torch.randint(len(names), shape, generator=generator)
    if pooling == "none":
        labels = labels.masked_fill((mask == 0) | (torch.rand(shape, generator=generator) < 0.3), -100)
        labels[:, 1] = 2
    return dict(input_ids=torch.randint(5, 101, (B, S), generator=generator) * mask, attention_mask=mask,
                token_type_ids=(torch.arange(S) > 3).long() * mask, labels=labels)


@settings(max_examples=12)
@given(kind=st.sampled_from(["bert", "roformer"]), task=st.sampled_from(["label", "number", "tags"]), layers=st.integers(1, 3),
       heads=st.sampled_from([2, 3, 6]), seed=st.integers(0, 99))
def test_logits_losses_and_every_gradient_are_theirs(tmp_path_factory, kind, task, layers, heads, seed):
    folder = tmp_path_factory.mktemp("head")
    pooling, names = ("none" if task == "tags" else "cls"), NAMES.get(task, ("a", "b", "c"))
    ours = made(kind, pooling, names, layers, heads, seed)
    save_pretrained(ours, None, folder)
    theirs, info = THEIRS[kind, pooling].from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and theirs.config.id2label == dict(enumerate(names))
    batch = drawn(pooling, names, seed)
    a, b = ours(**batch), theirs.eval()(**batch)
    assert_same(a.logits, b.logits, tol=1e-9)
    assert_same(a.loss, b.loss, tol=1e-9)
    assert ours.counts(batch) == dict(label=int((batch["labels"] != -100).sum()))
    a.loss.backward(), b.loss.backward()
    grads = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    mirror = made(kind, pooling, names, layers, heads, seed)
    for p, q in zip(mirror.parameters(), ours.parameters()): p.data = torch.zeros_like(q) if q.grad is None else q.grad.clone()
    ours_by_name = to_hf(mirror)
    assert_same({name: ours_by_name[name] for name in grads}, grads, tol=1e-9)


@pytest.mark.parametrize("pooling, names", [("none", ("a", "b", "c")), ("cls", ("stars",))])
@pytest.mark.parametrize("kind", ["bert", "roformer"])
def test_written_and_read_again(tmp_path, kind, pooling, names):
    ours = made(kind, pooling, names)
    save_pretrained(ours, None, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_pretrained(tmp_path)
    assert again.config == ours.config and again.config.problem_type == ("regression" if len(names) == 1 else "single_label_classification")
    assert_same(again.state_dict(), ours.state_dict(), tol=0)


def test_a_tagger_of_theirs_opens_here():
    config = hf.BertConfig(vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=37, num_labels=5)
    theirs = randomise_(hf.BertForTokenClassification(config)).double().eval()
    with pytest.warns(UserWarning, match="no pooler"): ours = from_hf(theirs).eval()
    batch = drawn("none", "abcde", 3)
    assert_same(ours(**batch).logits, theirs(**batch).logits, tol=1e-9)
    assert ours.config.pooling == "none" and len(ours.names) == 5
