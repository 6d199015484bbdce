"""DeBERTa and ModernBERT, equal to Hugging Face's: states, probs, logits, loss, every gradient, files; and what must change nothing."""
import json
import math
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.resources import files
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
import transformers.models.deberta_v2.modeling_deberta_v2 as theirs_deberta
import transformers.models.modernbert.modeling_modernbert as theirs_modern
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibert.config import BertConfig
from minibert.core.errors import UserError
from minibert.data.stories import stories
from minibert.encoder import FeedForward
from minibert.hub.families import family_of, into_theirs, unroll
from minibert.hub.files import read_sizes
from minibert.hub.sizes import DebertaConfig, ModernBertConfig
from minibert.model import attentions
from minibert.new_layers import DebertaForMaskedLM, ModernBertForMaskedLM, log_buckets
from minibert.nn.block import GatedFeedForward
from minibert.nn.packing import PackedModernBertForMaskedLM
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.runs.course import open_course
from minibert.weights import from_hf, load_pretrained, save_pretrained, to_hf

TOL = 1e-9
SIZES = dict(vocab_size=101, hidden_size=24, num_hidden_layers=4, num_attention_heads=2, intermediate_size=37)
DEBERTA = DebertaConfig(**SIZES, max_position_embeddings=30, position_buckets=4, max_relative_positions=9)
MODERN = ModernBertConfig(**SIZES, max_position_embeddings=30, local_attention=6, pad_token_id=0, cls_token_id=2, sep_token_id=3)
both = pytest.mark.parametrize("config", [DEBERTA, MODERN], ids=["deberta", "modernbert"])


# --- theirs in float64: where they compute in float32 even in a double model, the formula stands instead ---


def exact_scale(query, factor): return torch.tensor(query.shape[-1] * factor, dtype=torch.float64).sqrt()


def exact_angles(self, x, position_ids, layer_type):
    K = self.config.hidden_size // self.config.num_attention_heads
    planes = torch.arange(0, K, 2, dtype=torch.float64) / K
    angles = position_ids[..., None] / self.config.rope_parameters[layer_type]["rope_theta"] ** planes
    return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def exact_turn(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + theirs_modern.rotate_half(x) * sin for x in (q, k))


def exact_attention(module, q, k, v, mask, scaling, dropout=0.0, **_):
    probs = (q @ k.mT * scaling + (0 if mask is None else mask)).softmax(-1)
    return (probs @ v).transpose(1, 2), probs


@contextmanager
def exact():
    with (patch.object(theirs_deberta, "scaled_size_sqrt", exact_scale),
          patch.object(theirs_modern.ModernBertRotaryEmbedding, "forward", exact_angles),
          patch.object(theirs_modern, "apply_rotary_pos_emb", exact_turn),
          patch.object(theirs_modern, "eager_attention_forward", exact_attention)):
        yield


def their_model(config, **changes):
    "Theirs with every parameter random, in float64 and eval mode."
    kind = "DebertaV2" if isinstance(config, DebertaConfig) else "ModernBert"
    values = config.to_dict() | changes
    model = getattr(hf, f"{kind}ForMaskedLM")(getattr(hf, f"{kind}Config")(**values, attn_implementation="eager"))
    return randomise_(model).double().eval()


def a_batch(config, rows=3, length=17, seed=0):
    "Input ids, mask and labels; for ModernBERT no more padding than half a window, beyond which theirs is NaN."
    batch = reference_batch(BertConfig(vocab_size=config.vocab_size, pad_token_id=config.pad_token_id), rows, length, seed)
    types = batch.pop("token_type_ids")
    if config.type_vocab_size > 1: batch["token_type_ids"] = types
    del batch["next_sentence_label"]
    if isinstance(config, ModernBertConfig):
        least = length - config.local_attention // 2
        batch["attention_mask"] = (torch.arange(length) < batch["attention_mask"].sum(1, keepdim=True).clamp(min=least)).long()
    return batch


def compare(config, batch, precision=exact, **changes):
    with precision(): compare_here(config, batch, their_model(config, **changes))


def compare_here(config, batch, theirs):
    ours = from_hf(theirs).eval()
    inputs, real = {name: t for name, t in batch.items() if name != "labels"}, batch["attention_mask"]
    a, b = ours(**inputs), theirs(**inputs, output_hidden_states=True, output_attentions=True)
    assert_same(ours.bert(**inputs).hidden_states, list(b.hidden_states), real, TOL, "states")
    for p, q in zip(attentions(ours, **inputs), b.attentions, strict=True):
        assert_same(p.transpose(1, 2), q.transpose(1, 2), real, TOL, "probs")
    assert_same(a.prediction_logits, b.logits, real, TOL, "logits")
    loss, formula = ours(**batch).loss, F.cross_entropy(b.logits.flatten(0, 1), batch["labels"].flatten())
    assert_same(loss, formula, tol=TOL, name="loss")
    assert_same(formula, theirs(**batch).loss.double(), tol=1e-6 if config.model_type == "modernbert" else TOL, name="their loss")
    loss.backward(), formula.backward()
    own = {name: p.grad for name, p in ours.named_parameters()}
    named = {name: p.grad for name, p in theirs.named_parameters()}
    _, family = family_of(ours)
    for entry in unroll(family.table, own):
        names = [entry.theirs, *(copy for copy, first in family.tied.items() if first == entry.theirs)]
        their_name = next(name for name in names if name in named)  # another one in the head of legacy=True
        assert_same(into_theirs(entry, own), named[their_name], tol=TOL, name=entry.theirs)
    lost, extra = theirs.load_state_dict(to_hf(ours), strict=False)  # and the way back
    assert not lost and all(name.startswith(("cls.", "lm_predictions.")) for name in extra)


@st.composite
def deberta(draw):
    heads, length = draw(st.integers(1, 4)), draw(st.integers(3, 24))
    buckets = draw(st.sampled_from([-1, 2, 4, 6, 8, 16]))
    config = DebertaConfig(
        vocab_size=draw(st.integers(12, 130)), hidden_size=heads * draw(st.sampled_from([4, 5, 8, 11])),
        num_hidden_layers=draw(st.integers(1, 3)), num_attention_heads=heads, intermediate_size=draw(st.integers(5, 48)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu"])), max_position_embeddings=length + draw(st.integers(0, 5)),
        type_vocab_size=draw(st.sampled_from([0, 0, 2])), layer_norm_eps=draw(st.sampled_from([1e-12, 1e-7, 1e-3])),
        pad_token_id=draw(st.sampled_from([0, 0, 3])), pos_att_type=draw(st.sampled_from(["c2p|p2c", "p2c|c2p", "c2p", "p2c"])),
        position_buckets=buckets, max_relative_positions=draw(st.sampled_from([-1, buckets // 2 + 3, 20]) if buckets > 0 else st.just(-1)),
        share_att_key=draw(st.booleans()), norm_rel_ebd=draw(st.sampled_from(["layer_norm", "none"])),
        position_biased_input=draw(st.booleans()))
    if config.far - 1 <= buckets // 2: config = replace(config, max_relative_positions=buckets // 2 + 3)
    return config, a_batch(config, draw(st.integers(1, 4)), length, draw(st.integers(0, 999))), draw(st.booleans())


@st.composite
def modern(draw):
    heads, length = draw(st.integers(1, 4)), draw(st.integers(3, 24))
    config = ModernBertConfig(
        vocab_size=draw(st.integers(12, 130)), hidden_size=heads * draw(st.sampled_from([2, 4, 6, 10])),
        num_hidden_layers=draw(st.integers(1, 5)), num_attention_heads=heads, intermediate_size=draw(st.integers(5, 48)),
        max_position_embeddings=length, global_attn_every_n_layers=draw(st.integers(1, 4)), local_attention=draw(st.integers(1, 12)),
        global_rope_theta=draw(st.sampled_from([160000.0, 1000.0])), local_rope_theta=draw(st.sampled_from([10000.0, 50.0])),
        norm_eps=draw(st.sampled_from([1e-5, 1e-3])), pad_token_id=draw(st.sampled_from([0, 3])), cls_token_id=1, sep_token_id=2)
    return config, a_batch(config, draw(st.integers(1, 4)), length, draw(st.integers(0, 999)))


def drawn(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def check_deberta(case): compare(*case[:2], legacy=case[2])


@pytest.mark.parametrize("config", [
    DEBERTA, replace(DEBERTA, share_att_key=False, type_vocab_size=2, position_biased_input=True, norm_rel_ebd="none"), MODERN,
    replace(MODERN, local_attention=12, global_attn_every_n_layers=2)], ids=["deberta", "deberta, other", "modernbert", "modernbert, other"])
def test_fixed(config): compare(config, a_batch(config, rows=4, length=23))


@drawn(8)
@given(deberta())
def test_deberta(case): check_deberta(case)


@pytest.mark.slow
@drawn(120)
@given(deberta())
def test_deberta_wide(case): check_deberta(case)


@drawn(8)
@given(modern())
def test_modernbert(case): compare(*case)


@pytest.mark.slow
@drawn(120)
@given(modern())
def test_modernbert_wide(case): compare(*case)


def test_theirs_as_it_is():
    "DeBERTa's scale is exact where 3 K is a square; ModernBERT's angles and softmax are float32."
    compare(replace(DEBERTA, hidden_size=48, num_attention_heads=4), a_batch(DEBERTA), nullcontext)
    theirs = their_model(MODERN)
    ours, inputs = from_hf(theirs).eval(), a_batch(MODERN)
    labels = inputs.pop("labels")
    assert labels.shape == inputs["input_ids"].shape
    a, b = ours(**inputs).prediction_logits, theirs(**inputs).logits
    assert 1e-9 < assert_same(a, b, inputs["attention_mask"], tol=1e-5) < 1e-5


@pytest.mark.parametrize("far", [9, 40, 512])
@pytest.mark.parametrize("buckets", [2, 4, 16, 256])
def test_buckets(buckets, far):
    if far - 1 <= buckets // 2: return
    distance = torch.arange(-600, 601)
    ours = log_buckets(distance, buckets, far)
    assert torch.equal(ours, theirs_deberta.make_log_bucket_position(distance, buckets, far).long())
    assert torch.equal(ours, -ours.flip(0)) and (ours.diff() >= 0).all()


# --- files ---


@both
def test_files_both_ways(config, tmp_path):
    ours = randomise_((DebertaForMaskedLM if config is DEBERTA else ModernBertForMaskedLM)(config)).double().eval()
    save_pretrained(ours, None, tmp_path / "ours")
    theirs, report = hf.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = a_batch(config)
    labels = batch.pop("labels")
    with exact(): assert_same(ours(**batch).prediction_logits, theirs(**batch).logits, batch["attention_mask"], TOL)
    theirs.save_pretrained(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        back = load_pretrained(tmp_path / folder)
        assert back.config == config and type(back) is type(ours) and not back.fresh
        assert_same(back.state_dict(), ours.state_dict(), tol=0)
    assert (labels != -100).any()


def test_a_file_of_version_3(tmp_path):
    "Its head under the new names without a word in the config, and two things that its class has no place for."
    ours = randomise_(DebertaForMaskedLM(DEBERTA))
    save_pretrained(ours, None, tmp_path)
    from safetensors.torch import load_file, save_file
    more = {"deberta.embeddings.position_embeddings.weight": torch.ones(30, 24), "mask_predictions.dense.weight": torch.ones(24, 24)}
    save_file(load_file(tmp_path / "model.safetensors") | more, tmp_path / "model.safetensors")
    values = json.loads((tmp_path / "config.json").read_text())
    del values["legacy"], values["architectures"]
    values |= dict(pos_att_type="p2c|c2p", pooler_hidden_act="gelu")
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.warns(UserWarning, match="mask_predictions"): back = load_pretrained(tmp_path)
    assert back.config.pos_att_type == ("p2c", "c2p")
    assert_same(back.state_dict(), ours.state_dict(), tol=0)


def test_what_a_file_leaves_out_has_their_default():
    left_out = dict(share_att_key=False, norm_rel_ebd="none", position_biased_input=True, position_buckets=-1)
    values = DEBERTA.to_dict()
    for name in left_out: del values[name]
    assert read_sizes(values) == replace(DEBERTA, **left_out)
    assert left_out.keys() <= DEBERTA.to_dict().keys()  # ours says each of them


def test_old_and_new_names_of_a_modernbert():
    new = hf.ModernBertConfig(**MODERN.to_dict()).to_dict()
    assert "layer_types" in new and read_sizes(new) == MODERN
    old = {name: value for name, value in MODERN.to_dict().items()}
    assert read_sizes(old | dict(reference_compile=False)) == MODERN


@pytest.mark.parametrize("change, match", [
    (dict(layer_types=["full_attention"] * 2 + ["sliding_attention"] * 2), "layer_types"),
    (dict(rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 1.0}}), "yarn"),
    (dict(mlp_bias=True), "mlp_bias"), (dict(attention_dropout=0.1), "attention_dropout")])
def test_other_modernberts_are_refused(change, match):
    with pytest.raises(UserError, match=match): read_sizes(MODERN.to_dict() | change)


def test_other_debertas_are_refused():
    for change in (dict(conv_kernel_size=3), dict(relative_attention=False), dict(pos_att_type=None)):
        with pytest.raises(UserError, match=next(iter(change))): read_sizes(DEBERTA.to_dict() | change)


# --- what must change nothing ---


def a_model(config, kind=None):
    kind = kind or (DebertaForMaskedLM if isinstance(config, DebertaConfig) else ModernBertForMaskedLM)
    return randomise_(kind(config)).double().eval()


def learn(model, batch):
    model.zero_grad()
    out = model(**batch)
    out.loss.backward()
    return out.loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@both
def test_padding_and_garbage_under_it_change_nothing(config):
    "Padding far longer than a window, too: no NaN comes of it."
    ours, batch = a_model(config), a_batch(config)
    longer = {name: F.pad(t, (0, 9), value=-100 if name == "labels" else 0) for name, t in batch.items()}
    padding = longer["attention_mask"] == 0
    dirty = longer | dict(input_ids=longer["input_ids"].masked_fill(padding, 77))
    plain = learn(ours, batch)
    for other in (longer, dirty):
        more = learn(ours, other)
        assert_same(more[0], plain[0], tol=TOL)
        assert_same({n: g for n, g in more[1].items()}, plain[1], tol=TOL)


@pytest.mark.parametrize("rows, length, window", [(1, 5, 6), (4, 17, 6), (5, 23, 3), (3, 9, 40)])
def test_packed_equals_padded(rows, length, window):
    config = replace(MODERN, local_attention=window)
    batch = a_batch(config, rows, length)
    batch["attention_mask"] = (torch.arange(length) < torch.randint(2, length + 1, (rows, 1))).long()
    batch["labels"][batch["attention_mask"] == 0] = -100
    bare, packed = a_model(config), a_model(config, PackedModernBertForMaskedLM)
    assert_same(learn(packed, batch)[0], learn(bare, batch)[0], tol=TOL)
    assert_same(learn(packed, batch)[1], learn(bare, batch)[1], tol=TOL)
    del batch["labels"]
    states = [model.bert(**batch).hidden_states for model in (packed, bare)]
    assert_same(*states, batch["attention_mask"], TOL)


def test_a_position_matters_only_through_distances():
    "The same text later in the row, after padding: the same states where positions are distances alone."
    for config in (DEBERTA, MODERN):
        ours, ids = a_model(config), torch.randint(1, 101, (1, 8))
        real = torch.ones_like(ids)
        moved = ours.bert(F.pad(ids, (5, 0)), attention_mask=F.pad(real, (5, 0))).last_hidden_state[:, 5:]
        assert_same(moved, ours.bert(ids).last_hidden_state, tol=TOL)
    biased = a_model(replace(DEBERTA, position_biased_input=True))
    moved = biased.bert(F.pad(ids, (5, 0)), attention_mask=F.pad(real, (5, 0))).last_hidden_state[:, 5:]
    with pytest.raises(AssertionError): assert_same(moved, biased.bert(ids).last_hidden_state, tol=TOL)


@both
def test_every_parameter_learns(config):
    _, gradients = learn(a_model(config), a_batch(config))
    assert all(gradient.abs().sum() > 0 for gradient in gradients.values())


def test_the_published_sizes():
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        deberta, modern = (sum(p.numel() for p in kind(kind_config()).parameters()) for kind, kind_config in (
            (DebertaForMaskedLM, DebertaConfig), (ModernBertForMaskedLM, ModernBertConfig)))
        theirs = hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**DebertaConfig().to_dict())).num_parameters()
        their_modern = hf.ModernBertForMaskedLM(hf.ModernBertConfig()).num_parameters()
    assert (deberta, modern) == (theirs, their_modern)


# --- what chapter 22b says in numbers ---


def the_measured(name): return json.loads((files("minibert") / "measured" / f"{name}.json").read_text())


def test_the_losses_by_position_are_as_the_chapter_says():
    runs = {name: [run for run in the_measured("new_layers") if (run["model"], run["steps"]) == (name, steps)]
            for name, steps in (("bert", 2400), ("deberta", 300), ("modernbert", 300))}
    at_the_line = {name: [round(loss, 1) for loss in of[0]["by_position"][5:7]] for name, of in runs.items()}
    assert at_the_line == dict(bert=[1.9, 8.5], deberta=[1.3, 1.6], modernbert=[2.1, 2.5])
    assert round(runs["bert"][0]["by_position"][4], 1) == 1.1
    for run in runs["deberta"] + runs["modernbert"]:  # lowest in the fourth eight, so they rise from about 30 on
        assert min(run["by_position"]) == run["by_position"][3]
    short = next(run for run in the_measured("new_layers") if run["model"] == "bert")
    assert [round(loss, 1) for loss in short["by_position"][5:7]] == [4.5, 4.8]


def test_the_sizes_and_times_are_as_the_chapter_says():
    found = {name: [run for run in the_measured("new_layers") if run["model"] == name] for name in ("bert", "deberta", "modernbert")}
    tables, heads = 128 * 64 + 2 * 64 - (2 * 16 * 64 + 2 * 64), 64 * 65 + 2 * 65
    assert found["bert"][0]["parameters"] - found["deberta"][0]["parameters"] == tables + heads
    times = {name: [run["seconds_a_step"] for run in runs] for name, runs in found.items()}
    assert min(times["deberta"]) > max(times["bert"] + times["modernbert"])
    packed = the_measured("packing")
    assert [round(row["ratio"], 1) for row in packed] == [0.8, 1.3, 2.6, 1.0, 1.3]
    assert [round(100 - 100 / row["tokens"]) for row in packed[1:3]] == [43, 59]


def test_distances_and_stories_are_as_long_as_the_chapter_says():
    rows = log_buckets(torch.arange(92), 16, 128)
    assert (rows == rows[47]).nonzero().flatten().tolist() == [*range(39, 58)]
    _, tokenizer = open_course()
    assert max(len(tokenizer.ids(story.text)) for story in stories(700, split="validation")) == 92


def test_only_a_gate_makes_a_product():
    config = BertConfig(hidden_size=2, num_attention_heads=1)
    far = 1e6 * torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    for kind, factor in ((FeedForward, 2), (GatedFeedForward, 4)):
        layer = kind(config)
        assert (layer(2 * far) - factor * layer(far)).abs().max() < 1e-3 * layer(far).abs().max()


def test_the_third_hand_is_almost_back_and_only_the_last_is_slow():
    angles = [64 * 100 ** (-plane / 4) for plane in range(4)]
    assert 6 < math.tau < 7 and 0 < angles[2] - math.tau < 0.2 and angles[3] < math.pi < angles[2]
