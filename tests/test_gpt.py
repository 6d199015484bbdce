"""GPT equals Hugging Face's GPT-2 over drawn configurations: states, probs, logits, loss, every gradient, and what it writes."""
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hypothesis import strategies as st

from lockstep import few_and_many, on_drawn, one_thread, parts_add_up, update_by_hand  # noqa: F401
from minibert.attention import attend
from minibert.core.seeds import seeded
from minibert.gpt import GPTConfig, GPTForCausalLM, causal_mask, forget, generate, next_logits, with_cache
from minibert.model import attentions
from minibert.train.optimizers import make_optimizers
from minibert.parity import assert_same, randomise_
from minibert.train.recipe import TrainingConfig
from minibert.text.foreign import open_tokenizer
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import pretrain, train_model
from minibert.training import Run, train_step
from minibert.weights import from_hf, load_pretrained, save_pretrained, to_hf
from minibert.data.windows import Windows

SMALL = GPTConfig(vocab_size=101, n_positions=20, n_embd=24, n_layer=2, n_head=4, n_inner=37,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def reference(config, seed=0):
    "Hugging Face's model of these sizes, every parameter random, in float64."
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(
        **config.to_dict() | dict(bos_token_id=0, eos_token_id=0), attn_implementation="eager"))
    return randomise_(theirs, seed).double().eval()


def their_loss(logits, labels):
    "Their loss by the formula, since their own converts to float32."
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@st.composite
def cases(draw):
    heads, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10_000))
    length, B = draw(st.integers(2, 15)), draw(st.integers(1, 4))
    config = GPTConfig(
        vocab_size=draw(st.integers(5, 120)), n_positions=length + draw(st.integers(0, 5)),
        n_embd=heads * draw(st.sampled_from([2, 3, 5, 8])), n_layer=draw(st.integers(1, 4)), n_head=heads,
        n_inner=draw(st.sampled_from([None, 7, 37])),
        activation_function=draw(st.sampled_from(["gelu_new", "gelu", "relu"])),
        layer_norm_epsilon=draw(st.sampled_from([1e-5, 1e-12, 1e-3])))
    g = seeded(seed)
    ids = torch.randint(config.vocab_size, (B, length), generator=g)
    lengths = torch.randint(2, length + 1, (B, 1), generator=g)
    real = (torch.arange(length) < lengths).long()
    if draw(st.booleans()): real = real.flip(1)
    return config, ids, real, seed


def check_equal(case):
    config, ids, real, seed = case
    theirs = reference(config, seed)
    ours = from_hf(theirs).eval()
    a, probs = ours(ids, real), attentions(ours, input_ids=ids, attention_mask=real)
    b = theirs(ids, attention_mask=real, output_hidden_states=True, output_attentions=True)
    assert_same(a.hidden_states, b.hidden_states, real)
    for x, y in zip(probs, b.attentions, strict=True): assert_same(x.transpose(1, 2), y.transpose(1, 2), real)
    assert_same(a.logits, b.logits, real)
    labels = ids.masked_fill(real == 0, -100)
    labels[:, 1:].masked_fill_(real[:, :-1] == 0, -100)  # padding predicts nothing
    loss, formula = ours(ids, real, labels=labels).loss, their_loss(b.logits, labels)
    assert_same(loss, formula)
    assert_same(loss.float(), theirs(ids, attention_mask=real, labels=labels).loss.float(), tol=2e-6)
    loss.backward()
    formula.backward()
    moved = GPTForCausalLM(config).double()
    moved.load_state_dict({name: p.grad for name, p in ours.named_parameters()})
    assert_same({k: v for k, v in to_hf(moved).items() if k != "lm_head.weight"},
                {name: p.grad for name, p in theirs.named_parameters()})


@few_and_many
def test_equal_to_hugging_face(count): on_drawn(check_equal, count, cases())


def test_every_parameter_gets_a_gradient():
    model = GPTForCausalLM(SMALL, seeded(0))
    ids = torch.randint(101, (2, 20), generator=seeded(1))
    model(ids, labels=ids).loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


def test_initial_weights_are_smaller_where_results_add_up():
    model = GPTForCausalLM(GPTConfig(4000, n_positions=300, n_embd=128, n_layer=8, n_head=4), seeded(0))
    for name, p in model.named_parameters():
        if p.dim() < 2: continue
        last = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        wanted = 0.02 / (16 ** 0.5 if last else 1)
        assert abs(p.std().item() / wanted - 1) < 5 / (2 * p.numel()) ** 0.5, name


def test_no_token_sees_the_next_one():
    model = GPTForCausalLM(SMALL, seeded(0)).double().eval()
    ids = torch.randint(101, (1, 12), generator=seeded(1))
    before = model(ids).logits
    for k in range(12):
        other = ids.clone()
        other[0, k] = (other[0, k] + 1) % 101
        changed = (model(other).logits != before).any(-1)[0]
        assert not changed[:k].any() and changed[k:].all()


def test_counts_make_parts_add_up():
    "The loss and gradient of a batch do not depend on how it is cut."
    ids = torch.randint(101, (6, 9), generator=seeded(2))
    labels = ids.clone()
    labels[1, 4:], labels[4, 2:], labels[5] = -100, -100, -100
    model = parts_add_up(lambda: GPTForCausalLM(SMALL, seeded(0)).double(), dict(input_ids=ids, labels=labels), "clm_loss")
    assert model.counts(dict(labels=labels)) == {"clm": 8 * 3 + 3 + 1}


def test_fifty_steps_in_lockstep_with_theirs():
    theirs = reference(SMALL, 3)
    ours = from_hf(theirs).train()
    theirs.train()
    for dropout in theirs.modules():
        if isinstance(dropout, torch.nn.Dropout): dropout.p = 0.0
    config = TrainingConfig(steps=50, batch_size=4, learning_rate=1e-3)
    mine, other = make_optimizers(ours, config), make_optimizers(theirs, config)
    for step in range(50):
        ids = torch.randint(101, (4, 16), generator=seeded(5, step))
        line = train_step(Run(ours, mine, config, step), dict(input_ids=ids, labels=ids)).line
        loss = their_loss(theirs(ids).logits, ids)
        loss.backward()
        norm = update_by_hand(theirs, other, line["learning_rate"], config.max_grad_norm)
        assert_same([line["loss"], line["grad_norm"]], [loss.item(), norm.item()], tol=1e-9)
    assert_same(to_hf(ours), theirs.state_dict(), tol=1e-9)


def test_checkpoints_go_both_ways_bit_for_bit(tmp_path):
    theirs = reference(SMALL, 1).float()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert all(torch.equal(a, theirs.state_dict()[name]) for name, a in to_hf(ours).items())
    save_pretrained(ours, None, tmp_path / "ours")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert type(again) is hf.GPT2LMHeadModel
    assert all(torch.equal(a, again.state_dict()[name]) for name, a in theirs.state_dict().items())
    assert again.lm_head.weight is again.transformer.wte.weight
    twice = load_pretrained(tmp_path / "ours")
    assert all(torch.equal(a, b) for a, b in zip(twice.parameters(), ours.parameters()))
    bare = {k.removeprefix("transformer."): v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    assert_same(to_hf(from_hf(bare, SMALL)), to_hf(ours), tol=0)


def test_a_pipeline_continues_a_text_as_we_do(tmp_path):
    "No [SEP] behind the prompt, an end that is known, and no more tokens than the model reads."
    tokenizer = WordPieceTokenizer.train(["anna lost her red ball .", "the dog ran home ."], vocab_size=60)
    ids = torch.tensor([tokenizer.ids("anna lost")])
    config = GPTConfig(tokenizer.vocab_size, n_positions=30, n_embd=24, n_layer=2, n_head=4, pad_token_id=tokenizer.pad_id)
    model = randomise_(GPTForCausalLM(config), 3).eval()
    ours = [token.item() for token in generate(model, ids, 20, temperature=0)]
    end = ours[9]  # so that it ends
    model.config = replace(config, bos_token_id=end, eos_token_id=end)
    save_pretrained(model, tokenizer, tmp_path)
    write = hf.pipeline("text-generation", model=str(tmp_path))
    told = write("anna lost", return_tensors=True, max_new_tokens=20, do_sample=False)[0]["generated_token_ids"]
    ours = ours[:ours.index(end) + 1]
    assert told == ids[0].tolist() + ours and 1 < len(ours) < 11
    assert ours == [token.item() for token in generate(model, ids, 20, temperature=0, stop=end)]
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("anna lost")["input_ids"] == ids[0].tolist()
    assert theirs.model_max_length == 30 == len(theirs("anna lost " * 20, truncation=True)["input_ids"])
    assert json.loads((tmp_path / "generation_config.json").read_text()) == dict(
        bos_token_id=end, eos_token_id=end, pad_token_id=tokenizer.pad_id)
    assert type(open_tokenizer(tmp_path)) is WordPieceTokenizer
    assert open_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_configs():
    theirs = GPTConfig.from_dict(json.loads(json.dumps(hf.GPT2Config().to_dict())))
    assert theirs == replace(GPTConfig(), bos_token_id=50256, eos_token_id=50256)
    with pytest.raises(AssertionError): GPTConfig(n_embd=26, n_head=4)


def check_cached(case, pieces):
    config, ids, real, seed = case
    real = real.flip(1) if not real[:, -1].all() else real  # padding on the left, as prompts have it
    ours = from_hf(reference(config, seed)).eval()
    places = (real.cumsum(1) - 1).clamp(min=0)
    whole = ours(ids, real, places).logits
    ends = sorted({*torch.randint(1, ids.shape[1] + 1, (pieces,), generator=seeded(seed)).tolist(), ids.shape[1]})
    reader, start = with_cache(ours), 0
    for end in ends:
        told = next_logits(reader, ids[:, start:end], real[:, :end])
        shown = real[:, end - 1].bool()
        if shown.any(): assert_same(told[shown], whole[shown, end - 1])
        start = end


@few_and_many
def test_cached_equals_uncached(count): on_drawn(check_cached, count, cases(), st.integers(0, 3))


def test_greedy_is_theirs_with_prompts_of_unequal_length():
    theirs = reference(SMALL, 4)
    theirs.generation_config.eos_token_id = None
    ours, ids = from_hf(theirs).eval(), torch.randint(1, 101, (3, 6), generator=seeded(9))
    real = torch.ones_like(ids)
    real[0, :4], real[2, :1] = 0, 0
    said = theirs.generate(ids, attention_mask=real, max_new_tokens=12, do_sample=False, pad_token_id=0)
    mine = torch.stack(list(generate(ours, ids, 12, real=real, temperature=0)), 1)
    assert torch.equal(mine, said[:, 6:])


def test_a_text_longer_than_the_positions_slides():
    model = GPTForCausalLM(SMALL, seeded(0)).double().eval()
    ids = torch.randint(101, (2, 7), generator=seeded(1))
    told = torch.stack(list(generate(model, ids, 50, temperature=0)), 1)
    text = torch.cat([ids, told], 1)
    assert told.shape == (2, 50)
    shown = text[:, :20]  # the last token before the first slide
    assert torch.equal(model(shown).logits[:, -1].argmax(-1), text[:, 20])
    half = text[:, 11:21]  # after it: the last ten
    assert torch.equal(model(half).logits[:, -1].argmax(-1), text[:, 21])


def test_each_row_forgets_by_its_own_length():
    "A short prompt beside a long one writes what it writes alone, however often the long one slides."
    model = GPTForCausalLM(SMALL, seeded(0)).double().eval()
    ids, real = torch.randint(101, (2, 18), generator=seeded(1)), torch.ones(2, 18, dtype=torch.long)
    real[0, :15] = 0
    both = torch.stack(list(generate(model, ids, 60, real=real, temperature=0)), 1)
    for row, text in enumerate((ids[:1, 15:], ids[1:])):
        assert torch.equal(torch.cat(list(generate(model, text, 60, temperature=0))), both[row])


def test_what_is_forgotten():
    real = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    assert forget(real, 5).tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert forget(real, 6).equal(real)
    assert forget(real[:, 4:], 1).tolist() == [[0, 1], [0, 1]]


def test_a_model_with_one_position_writes():
    model = GPTForCausalLM(replace(SMALL, n_positions=1), seeded(0)).eval()
    told = torch.cat(list(generate(model, torch.tensor([[5]]), 4, temperature=0)))
    assert torch.equal(model(told[:3, None]).logits[:, 0].argmax(-1), told[1:])


def test_seeds_decide_the_draws_and_rows_stop():
    model = GPTForCausalLM(SMALL, seeded(0))
    ids = torch.randint(101, (4, 5), generator=seeded(1))
    run = lambda **how: torch.stack(list(generate(model, ids, 30, **how)), 1)
    assert torch.equal(run(seed=3), run(seed=3)) and not torch.equal(run(seed=3), run(seed=4))
    stop = int(run(seed=3)[0, 4])
    told = run(seed=3, stop=stop)
    for row in told.tolist():
        if stop in row: assert set(row[row.index(stop):]) == {stop}
    free = run(seed=3)
    for a, b in zip(told.tolist(), free.tolist()):
        n = a.index(stop) if stop in a else len(a)
        assert a[:n] == b[:n]


def test_masks_hide_padding_and_the_future_in_one_go():
    real = torch.tensor([[0, 0, 1, 1]])
    mask = causal_mask(real, 4, torch.float64)
    assert mask.isfinite().all() and mask.softmax(-1).isfinite().all()
    seen = [[True, False, False, False], [False, True, False, False], [False, False, True, False], [False, False, True, True]]
    assert (mask[0, 0] == 0).tolist() == seen


def explicit(self, x, mask=None, memory=None):
    "Attention by its formula alone."
    return self.output(attend(*self.heads_of(x, memory), mask)[0].transpose(1, 2).flatten(2))


def blind_mask(real, queries, dtype):
    "Padding on the left may look at nothing: each of its scores gets the lowest number."
    past = torch.ones(queries, real.shape[1]).tril(real.shape[1] - queries).bool()
    return torch.zeros(()).to(dtype).masked_fill(~(past & real[:, None, None].bool()), torch.finfo(dtype).min)


@pytest.mark.parametrize("mask, wrong", [(None, False), (blind_mask, True)])
def test_gradients_of_a_batch_padded_on_the_left(monkeypatch, mask, wrong):
    "With the usual labels the last padding token is asked for the first word, so its attention has to be right."
    if mask is not None: monkeypatch.setattr("minibert.gpt.causal_mask", mask)
    ids, real = torch.randint(1, 101, (3, 9), generator=seeded(1)), torch.ones(3, 9, dtype=torch.long)
    real[0, :4], real[1, :7] = 0, 0
    found = []
    for fused in True, False:
        model = GPTForCausalLM(SMALL, seeded(0)).double()
        if not fused: monkeypatch.setattr("minibert.attention.MultiHeadAttention.forward", explicit)
        loss = model(ids, real, labels=ids.masked_fill(real == 0, -100)).loss
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
    assert_same(found[0][0], found[1][0])
    gap = max((a - b).abs().max() for a, b in zip(found[0][1], found[1][1]))
    assert gap > 1e-4 if wrong else gap < 1e-12


def test_a_run_goes_on_where_it_stopped(tmp_path):
    from minibert.data.corpus import Corpus
    from minibert.data.documents import load_documents
    documents = load_documents("stories", limit=40)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=300)
    windows = Windows(Corpus.build(documents, tokenizer), tokenizer, 16)
    config = TrainingConfig(steps=6, batch_size=4, length=16, checkpoint_steps=3, log_steps=1, keep_checkpoints=3)
    sizes = GPTConfig(tokenizer.vocab_size, n_positions=16, n_embd=24, n_layer=2, n_head=4)
    model = GPTForCausalLM(sizes, seeded(0))
    whole = pretrain(model, windows, config, tmp_path / "a", progress=False)
    import shutil
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    newest = max((tmp_path / "b" / "checkpoints").iterdir(), key=lambda p: p.name)
    shutil.rmtree(newest)
    again = GPTForCausalLM(sizes, seeded(1))
    assert train_model(again, windows, config, tmp_path / "b", resume=True, progress=False).history == whole
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters()))
