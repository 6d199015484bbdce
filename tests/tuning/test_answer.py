"""Answers in a text: the head is Hugging Face's, windows are the library's, spans and scores those of transformers 4, and a run answers files."""
import csv
import json
import shutil
import warnings

import numpy as np
import pytest
import torch
import transformers as hf
from command import call
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.hf4_answers import ASKED, CASES, LENGTH, VOCAB, case, drawn

import minibert
from minibert.config import BertConfig
from minibert.core.course import COURSE
from minibert.core.errors import UserError
from minibert.core.seeds import seeded
from minibert.data.labels import ask
from minibert.data.questions import Questions, QuestionSampler, best_answer, find_tokens, read_questions, story_questions
from minibert.data.stories import stories
from minibert.heads import BertForPreTraining
from minibert.measure.answers import score_answer
from minibert.nn.classifier_parts import make_encoder
from minibert.nn.reader import BertReader, best_spans
from minibert.parity import assert_same, randomise_
from minibert.runs.course import open_course
from minibert.runs.plan import FinetuneConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.tuning.answer import TASK, score_answers, text_numbers
from minibert.tuning.finetune import read_parts, run_finetuning
from minibert.tuning.tasks import load_tuned, task_for
from minibert.weights import from_hf, load_pretrained, save_pretrained, to_hf

THEIRS = dict(bert=hf.BertForQuestionAnswering, roformer=hf.RoFormerForQuestionAnswering)
QUESTIONS = story_questions(stories(24))


@pytest.fixture(scope="module")
def hf4(request):
    return json.loads((request.config.rootpath / "tests/parity/hf4_answers.json").read_text(encoding="utf8"))


def write(path, questions):
    rows = [dict(question=q, context=c, answers=[dict(text=words, answer_start=start) for words, start in own])
            for (q, c), own in zip(questions.texts, questions.labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options(home, **more):
    values = dict(run=home / "bert", dataset=home / "asked.jsonl", out=home / "reader", task="answer", batch_size=16, epochs=1, learning_rate=1e-3) | more
    return FinetuneConfig(**{name: value if name in ("epochs", "learning_rate", "batch_size", "length", "frozen", "seed") else str(value) for name, value in values.items()})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    "A folder with a BERT that knows nothing, questions about stories, and a reader of them that knows little."
    home = tmp_path_factory.mktemp("home")
    tokenizer = WordPieceTokenizer.from_pretrained(COURSE)
    config = BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, max_position_embeddings=40)
    save_pretrained(BertForPreTraining(config, seeded(0)), tokenizer, home / "bert")
    write(home / "asked.jsonl", QUESTIONS)
    run_finetuning(options(home), progress=False)
    return home


# --- the head ---


def made(kind, layers, heads, seed):
    config = BertConfig(model_type=kind, vocab_size=101, hidden_size=24, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=37,
                        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return randomise_(BertReader(make_encoder(config, seeded(seed)), seeded(seed))).double().eval()


def check_parity(folder, kind, layers, heads, seed, B=4, S=9):
    generator, ours = seeded(seed, 7), made(kind, layers, heads, seed)
    save_pretrained(ours, None, folder)
    theirs, info = hf.AutoModelForQuestionAnswering.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    assert type(theirs) is THEIRS[kind] and not info["missing_keys"] and not info["unexpected_keys"]
    mask = (torch.arange(S) < torch.randint(2, S + 1, (B, 1), generator=generator)).long()
    batch = dict(input_ids=torch.randint(5, 101, (B, S), generator=generator) * mask, attention_mask=mask, token_type_ids=(torch.arange(S) > 3).long() * mask)
    labels = torch.randint(-2, S + 3, (B, 2), generator=generator)
    labels[0] = torch.tensor([1, 2])  # one that counts
    a, b = ours(**batch, labels=labels), theirs.eval()(**batch, start_positions=labels[:, 0].clone(), end_positions=labels[:, 1].clone())
    assert_same([a.loss, a.start_logits, a.end_logits], [b.loss, b.start_logits, b.end_logits], tol=1e-9)
    a.loss.backward(), b.loss.backward()
    mirror = made(kind, layers, heads, seed)
    for p, q in zip(mirror.parameters(), ours.parameters()): p.data = torch.zeros_like(q) if q.grad is None else q.grad.clone()
    grads = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert_same({name: to_hf(mirror)[name] for name in grads}, grads, tol=1e-9)


@pytest.mark.parametrize("kind, layers, heads, seed", [("bert", 2, 3, 0), ("roformer", 1, 2, 1)])
def test_logits_loss_and_every_gradient_are_theirs(tmp_path, kind, layers, heads, seed): check_parity(tmp_path, kind, layers, heads, seed)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from([*THEIRS]), layers=st.integers(1, 3), heads=st.sampled_from([2, 3, 6]), seed=st.integers(0, 10**6))
def test_logits_loss_and_every_gradient_are_theirs_in_drawn_configurations(tmp_path_factory, kind, layers, heads, seed):
    check_parity(tmp_path_factory.mktemp("head"), kind, layers, heads, seed)


@pytest.mark.parametrize("kind", [*THEIRS])
def test_written_and_read_again(tmp_path, kind):
    ours = made(kind, 2, 3, 5)
    save_pretrained(ours, None, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_pretrained(tmp_path)
    assert again.config == ours.config and task_for(again) is TASK and json.loads((tmp_path / "config.json").read_text())["problem_type"] is None
    assert_same(again.state_dict(), ours.state_dict(), tol=0)


def test_a_reader_of_theirs_opens_here():
    theirs = randomise_(hf.BertForQuestionAnswering(hf.BertConfig(vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=37))).eval()
    with pytest.warns(UserWarning, match="no pooler"): ours = from_hf(theirs).eval()
    ids = torch.arange(5, 12)[None]
    assert_same(ours(ids).end_logits, theirs(ids).end_logits, tol=1e-5)


# --- transformers 4 ---


def test_scores_are_those_of_squads_script(hf4):
    for answer, truths, exact, f1 in hf4["scores"]: assert score_answer(answer, truths) == pytest.approx((exact, f1)), (answer, truths)


def test_best_spans_and_no_answer_follow_googles_rule(hf4):
    tokenizer, rights = WordPieceTokenizer(VOCAB), hf4["rule"]
    for k, (answer, odds) in zip(range(CASES), rights, strict=True):
        question, text, draw = case(k)
        sampler = QuestionSampler(Questions.of([(question, text)], [()]), tokenizer, LENGTH)
        logits = torch.zeros(len(sampler), LENGTH, 2).double()
        for row, S in zip(logits, sampler.lengths): row[:S] = torch.from_numpy(drawn(draw, S))
        found, = TASK.words(logits, sampler)
        assert found["answer"] == answer and found["margin"] == pytest.approx(-odds, abs=1e-5), k
    assert 5 <= sum(not answer for answer, _ in rights) <= CASES // 2


def test_the_pipeline_answers_alike_within_a_window(hf4):
    model, tokenizer = open_course()
    reader = BertReader(model.bert).eval()
    with torch.no_grad():
        reader.classifier.weight.copy_(torch.from_numpy(np.random.RandomState(0).randn(2, 128)))
        reader.classifier.bias.zero_()
    pairs = [("Who?", " ".join(story.sentences[:2])) for story in stories(ASKED)]
    assert [row["answer"] for row in minibert.predict(reader, pairs, tokenizer)] == hf4["pipeline"]


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_best_spans_are_those_of_a_search_through_all(longest):
    for seed in range(20):
        logits, text = torch.randn(3, 9, 2, generator=seeded(seed)), torch.rand(3, 9, generator=seeded(seed, 1)) < 0.7
        text[:, 4] = True
        for row, inside, score, *found in zip(logits, text, *best_spans(logits, text, longest)):
            legal = {(i, j): (row[i, 0] + row[j, 1]).item() for i in range(9) for j in range(i, min(9, i + longest)) if inside[i] and inside[j]}
            assert legal[tuple(x.item() for x in found)] == pytest.approx(score.item()) == pytest.approx(max(legal.values()))


# --- windows ---


@pytest.mark.parametrize("length", [12, 33, 48, 128])
def test_windows_are_those_of_the_library(length):
    _, tokenizer = open_course()
    theirs = hf.PreTrainedTokenizerFast(tokenizer_file=str(COURSE / "tokenizer.json"), cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")
    some = QUESTIONS.take(range(0, len(QUESTIONS), 7))
    sampler = QuestionSampler(some, tokenizer, length)
    assert sampler.cut == (sum(len(tokenizer.ids(q)) > length // 3 for q, _ in some.texts))
    row = 0
    for k, (question, text) in enumerate(some.texts):
        kept = len(tokenizer.ids(question)[:length // 3])
        words = theirs(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"][kept - 1][1]
        wanted = theirs(question[:words], text, max_length=length, truncation="only_second", stride=length // 3, return_overflowing_tokens=True, return_offsets_mapping=True)
        for n, (ids, places) in enumerate(zip(wanted["input_ids"], wanted["offset_mapping"])):
            beside = np.array([x != 1 for x in wanted.sequence_ids(n)])
            assert sampler.rows[row]["input_ids"] == ids and sampler.question[row] == k
            assert (sampler.places[row] == np.where(beside[:, None], -1, places)).all()
            row += 1
    assert row == len(sampler) and (length > 48 or row > len(some))


def test_labels_point_to_the_answer_or_to_no_token():
    _, tokenizer = open_course()
    sampler, whole = QuestionSampler(QUESTIONS, tokenizer, 48), set()
    for places, (first, last), k in zip(sampler.places, sampler.labels, sampler.question):
        truths, (_, text) = QUESTIONS.labels[k], QUESTIONS.texts[k]
        if first:
            assert text[places[first, 0]:places[last, 1]] == truths[0][0] and places[first, 0] == truths[0][1]
            whole.add(k)
        elif truths:  # a part of it lies beyond this window
            inside = places[places[:, 1] >= 0]
            assert last == 0 and (inside[0, 0] > truths[0][1] or inside[-1, 1] < truths[0][1] + len(truths[0][0]))
    assert whole == {*np.flatnonzero(QUESTIONS.strata)}


def test_an_answer_inside_a_token_is_that_token():
    places = np.array([(-1, -1), (-1, -1), (0, 3), (4, 9), (9, 10), (-1, -1)])
    for words, start, wanted in (("the", 0, (2, 2)), ("her", 5, (3, 3)), ("there.", 4, (3, 4)), ("the there.", 0, (2, 4)), ("more", 9, (0, 0))):
        assert find_tokens(places, [(words, start)]) == wanted
    assert find_tokens(places, []) == find_tokens(places - 99, [("the", 0)]) == (0, 0)


# --- questions ---


def test_questions_about_stories_have_one_answer_that_the_text_tells():
    asked = story_questions(stories(100, seed=3))
    for pair, truths in zip(asked.texts, asked.labels): assert score_answer(best_answer(*pair), [words for words, _ in truths])[0] == 1, pair
    assert 0.4 < asked.strata.mean() < 0.7 and asked.texts == story_questions(stories(100, seed=3)).texts


def test_a_wrong_start_or_a_missing_part_is_named(tmp_path):
    good = dict(question="Who?", context="Tom ran.", answers="Tom")
    for more, named in ((dict(start=1), "Row 2 of .* has the answer 'Tom'"), (dict(answers="Ben"), "Row 2 of .* 'Ben'"), (dict(start=99), "Row 2 of .* at 99"),
                        (dict(answers=[dict(text="ran", answer_start=3)]), "Row 2 of .* 'ran'"), (dict(context=" "), "Row 2 of .* lacks its question or its text")):
        (tmp_path / "bad.jsonl").write_text("\n".join(json.dumps(dict(start="") | row) for row in (good, good | more)))
        with pytest.raises(UserError, match=named): read_questions(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text("")
    with pytest.raises(UserError, match="has no question"): read_questions(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, (good | dict(start=0), good))))
    with pytest.raises(UserError, match="Line 2 of .*'start'"): read_questions(tmp_path / "bad.jsonl")
    (tmp_path / "bad.json").write_text('{"version": "v2.0", "data": [')
    with pytest.raises(UserError, match="bad.json is damaged"): read_questions(tmp_path / "bad.json")


def test_squads_own_file_is_read_however_it_is_printed(tmp_path):
    row = dict(id="1", question="Who ran?", answers=[dict(text="Tom", answer_start=0), dict(text="Tom ran", answer_start=0)], is_impossible=False)
    none = dict(id="2", question="Who sang?", answers=[], is_impossible=True)
    squad = dict(data=[dict(title="a", paragraphs=[dict(context="Tom ran.", qas=[row]), dict(context="Ben ran.", qas=[none])])])
    for indent, values in ((None, squad), (2, squad), (1, dict(version="v2.0") | squad)):
        (tmp_path / "dev.json").write_text(json.dumps(values, indent=indent))
        found = read_questions(tmp_path / "dev.json")
        assert found.texts == (("Who ran?", "Tom ran."), ("Who sang?", "Ben ran.")) and found.labels.tolist() == [(("Tom", 0), ("Tom ran", 0)), ()]


# --- a run ---


def test_figures_are_those_of_the_answers(home):
    figures, (_, _, test) = json.loads((home / "reader/figures.json").read_text()), read_parts(TASK, TASK.with_defaults(options(home)))
    answers = [row["answer"] for row in minibert.predict(home / "reader", test.texts)]
    exact, f1 = score_answers(answers, test)
    assert figures["bert"]["exact_match"] == pytest.approx(exact.mean()) and figures["bert"]["f1"] == pytest.approx(f1.mean())
    assert figures["no_answer"]["f1"] == pytest.approx(1 - test.strata.mean()) and figures["by_label"]["answer"]["n"] == test.strata.sum()
    assert 0 <= figures["best_sentence"]["exact_match"] <= figures["best_sentence"]["f1"] < 0.5 and figures["main"] == "f1"
    assert len({*text_numbers(test)}) == len({text for _, text in test.texts})
    kept = json.loads((home / "reader/options.json").read_text())
    assert [kept[name] for name in ("text_column", "text_pair_column", "label_column")] == ["question", "context", "answers"]


@pytest.mark.filterwarnings("ignore")
def test_files_are_answered_in_order(home, monkeypatch):
    from minibert.tuning import predict
    monkeypatch.setattr(predict, "BLOCK", 16)
    pairs = [*QUESTIONS.texts[:40]]
    said = minibert.predict(home / "reader", pairs)
    with open(home / "a.csv", "w", newline="") as file: csv.writer(file).writerows([("question", "context"), *pairs])
    found = [*csv.DictReader(call("predict", home / "reader", home / "a.csv")[0].splitlines())]
    assert [(row["question"], row["context"]) for row in found] == pairs and [row["answer"] for row in found] == [row["answer"] for row in said]
    lines = [json.loads(line) for line in call("predict", home / "reader", home / "asked.jsonl", "--json")[0].splitlines()]
    assert [row["answer"] for row in lines[:40]] == [row["answer"] for row in said] and len(lines) == len(QUESTIONS)
    shutil.copytree(home / "reader", home / "elsewhere", ignore=lambda *_: ["options.json"])  # as from the hub
    assert call("predict", home / "elsewhere", home / "asked.jsonl", "--json")[0].splitlines() == [json.dumps(row, ensure_ascii=False) for row in lines]
    for row, (_, text) in zip(said, pairs):
        assert row["answer"] == ("" if row["start"] is None else text[row["start"]:][:len(row["answer"])]) and (row["margin"] < 0) == (row["answer"] == "")


@pytest.mark.filterwarnings("ignore")
def test_one_question_is_asked_from_the_command(home, classifier):
    question, text = QUESTIONS.texts[0]
    wanted, = minibert.predict(home / "reader", [(question, text)])
    assert call("answer", home / "reader", question, text)[0].strip() == (wanted["answer"] or "The text doesn't say.")
    assert json.loads(call("answer", home / "reader", question, text, "--json")[0]) == wanted
    assert "classifier" in call("answer", classifier, question, text, code=2)[1]
    assert "reader" in call("classify", home / "reader", text, code=2)[1]


def test_options_that_mean_nothing_are_refused(home):
    for more, named in ((dict(frozen=True), "--frozen"), (dict(length=8), "length is 8")):
        with pytest.raises(UserError, match=named): run_finetuning(options(home, **more, out=home / "new"), progress=False)


def test_a_long_question_and_an_empty_text_have_an_answer_too(home):
    said = minibert.predict(home / "reader", [("who " * 99, "Tom ran."), ("Who?", "\u200b")])
    assert said[1]["answer"] == "" and said[1]["margin"] < 0 and len(said) == 2


def test_the_loss_of_the_part_set_aside_is_the_models(home):
    "Of a window without padding; with padding behind it, ours leaves that out."
    (_, model), tokenizer = load_tuned(home / "reader"), WordPieceTokenizer.from_pretrained(COURSE)
    one = Questions.of([("Who ran?", "Tom ran home.")], [(("Tom", 0),)])
    sampler = QuestionSampler(one, tokenizer, 40)
    with torch.no_grad(): out = model(**sampler.gather([0]))
    assert sampler.judge(ask(model, sampler))["val_loss"] == pytest.approx(out.loss.item(), abs=1e-6) and len(sampler) == 1
    assert out.loss.item() == pytest.approx(-(out.start_logits.log_softmax(1)[0, 5] + out.end_logits.log_softmax(1)[0, 5]).item() / 2, abs=1e-6)
