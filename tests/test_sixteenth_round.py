"""What the sixteenth round of tries has found: a checkpoint that is a link, a word in a file that has its place on the command line,
and a stop that was put off until workers began."""
import signal

import pytest
import torch

from command import refused

from minibert.train.checkpoints import save_checkpoint
from minibert.config import BertConfig
from minibert.core.errors import deaf_children, list_checkpoints
from minibert.heads import BertForPreTraining


def test_a_checkpoint_that_is_a_link_goes_and_what_it_leads_to_stays(tmp_path):
    model = BertForPreTraining(BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16))
    def save(step): save_checkpoint(tmp_path, step, model, [torch.optim.AdamW(model.parameters())], dict(model={}, examples={}, training={}))
    save(1)
    oldest, = list_checkpoints(tmp_path)
    (tmp_path / "checkpoints" / "00000003").symlink_to(tmp_path / "nowhere")
    oldest.rename(tmp_path / "elsewhere")
    oldest.symlink_to(tmp_path / "elsewhere")
    for step in 2, 3: save(step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["00000002", "00000003"]
    assert not oldest.is_symlink() and (tmp_path / "elsewhere" / "state.json").is_file()


@pytest.mark.parametrize("command, key, word", [("evaluate", "RUN", "RUN"), ("evaluate", "run", "RUN"), ("compare", "A", "A"),
                                                ("fill-mask", "texts", "TEXT"), ("runs", "Folder", "FOLDER")])
def test_what_stands_on_the_command_line_is_sent_there_at_once(tmp_path, command, key, word):
    (tmp_path / "o.yaml").write_text(f"{key}: runs/1\n")
    assert f"o.yaml has '{key}', which has no flag: leave it out, and give {word} on the command line." in refused(
        command, "runs/1", "--config", "o.yaml", cwd=tmp_path)


@pytest.mark.posix
def test_a_stop_that_was_put_off_is_heard_when_the_workers_have_begun():
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(True))
    try:
        with deaf_children():
            signal.raise_signal(signal.SIGALRM)
            assert not heard
        assert heard
    finally: signal.signal(signal.SIGALRM, before)
