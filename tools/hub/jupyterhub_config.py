"""A JupyterHub for a class: whoever logs in gets a folder with the chapters and a JupyterLab of their own.

    HUB_PASSWORD=... HUB_HOMES=/srv/minibert jupyterhub -f tools/hub/jupyterhub_config.py

One password for all, and all of them run as the user that starts the hub (not root), so there are no walls between learners:
it's for a class that you know, on a machine with nothing else on it. nbs/teaching/forty_laptops.md says more.
"""
import os
import shutil
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2]
HOMES = Path(os.environ.get("HUB_HOMES", COURSE / "runs/hub")).resolve()

c = get_config()  # noqa: F821  # JupyterHub brings it
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = os.environ["HUB_PASSWORD"]  # 8 characters or more
c.Authenticator.allow_all = True

c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = f"{HOMES}/{{username}}"
c.Spawner.notebook_dir = f"{HOMES}/{{username}}"
c.Spawner.default_url = "/lab/tree/nbs/teaching/90_minutes.ipynb"
c.Spawner.cmd = [str(Path(sys.executable).with_name("jupyterhub-singleuser"))]
c.Spawner.http_timeout = c.Spawner.start_timeout = 120  # forty servers that start at once take a while
c.Spawner.environment = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "OMP_NUM_THREADS": "1",  # a core each, or forty trainings fight for all
    "MINIBERT_NAME": lambda spawner: spawner.user.name,
    "MINIBERT_PROGRESS": lambda spawner: f"{HOMES}/{spawner.user.name}/progress.jsonl",
}


def copy_course(spawner):
    "The chapters, once, without answers, the teacher's pages and the plans: what a learner has changed stays."
    folder = HOMES / spawner.user.name / "nbs"
    kept_back = shutil.ignore_patterns(".ipynb_checkpoints", "answers", "[0-9][0-9]*_*.md", "plan_*.md")
    if not folder.exists(): shutil.copytree(COURSE / "nbs", folder, ignore=kept_back)


c.Spawner.pre_spawn_hook = copy_course
