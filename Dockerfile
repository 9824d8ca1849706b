# One image, started as gateway, streams, workers or trainer (the command names the package).
#   docker build --build-arg PIP_ARGS="…" .    more arguments for pip: another index, or builds of torch for CPU or CUDA
FROM python:3.11-slim

ARG PIP_ARGS=""
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 HF_HUB_OFFLINE=1

WORKDIR /srv/intentloop
# torch first and alone: resolved together with the rest, pip may take a newer build of several GB
RUN pip install ${PIP_ARGS} torch==2.13.0
COPY pyproject.toml constraints.txt README.md ./
COPY intentloop intentloop
COPY gateway gateway
COPY streams streams
COPY workers workers
COPY trainer trainer
COPY demo demo
RUN pip install ${PIP_ARGS} -c constraints.txt -e .

# releases lie on a volume; the image's owner of the folder becomes the volume's
RUN useradd --system --create-home --uid 10001 intentloop && mkdir -p var/blobs var/runs && chown -R intentloop var
USER intentloop

ENTRYPOINT ["python", "-m"]
CMD ["gateway"]
