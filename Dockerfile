# The course in a container, with PyTorch for the CPU: JupyterLab on port 8888.
#   docker build -t minibert .
#   docker run --rm -p 8888:8888 minibert
FROM python:3.12-slim-bookworm
RUN useradd --create-home --uid 1000 learner
USER learner
WORKDIR /home/learner/minibert
ENV PATH=/home/learner/.venv/bin:$PATH OMP_NUM_THREADS=1
ARG TORCH=https://download.pytorch.org/whl/cpu
COPY --chown=learner . .
RUN python -m venv /home/learner/.venv \
 && pip install --no-cache-dir --no-compile -c constraints.txt --extra-index-url=$TORCH -e ".[dev]" \
 && python -m ipykernel install --sys-prefix --display-name python3
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "nbs"]
