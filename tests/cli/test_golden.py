"""Ten sentences as they are, to keep their tone: what was given, what was expected, what to do."""
import pytest
from command import call

GOLDEN = {
    "pretrain --config no.yaml": "minibert: no.yaml: No such file or directory",
    "pretrain --model brt": "minibert: --model is brt: choose bert or gpt or t5 or roberta or albert or distilbert or electra or deberta or modernbert or variant.",
    "pretrain --recipe bert --model gpt": "minibert: --recipe is bert: choose own for this model.",
    "evaluate nowhere": "minibert: nowhere is not the folder of a run: give one that minibert pretrain made.",
    "pretrain --resume nowhere": "minibert: nowhere is not the folder of a run: give one that minibert pretrain made.",
    "finetune --resume nowhere": "minibert: There is no nowhere/options.json: give the folder of a run that minibert finetune began.",
    "runs nowhere": "minibert: There is no folder nowhere: train a model with minibert pretrain, or name the folder that holds your runs.",
    "pretrain --config prose.yaml": "minibert: prose.yaml holds no options: write lines like 'batch_size: 64'.",
    "pretrain --config wrong.yaml": "minibert: There is no option 'stps': did you mean steps?",
    "bench --vocab-size 99": "minibert: --vocab-size 99 is of one model: give its --size too; without, four models have their own.",
}


@pytest.mark.parametrize("words", GOLDEN)
def test_a_sentence_is_as_it_was(tmp_path, words):
    (tmp_path / "prose.yaml").write_text("only prose")
    (tmp_path / "wrong.yaml").write_text("stps: 7")
    _, err = call(*words.split(), cwd=tmp_path, code=2)
    assert err.splitlines()[-1] == GOLDEN[words]
