#!/usr/bin/env python3
"""What scripts/published/files.py asks of llama.cpp: its converter and its library, without a change to any file of theirs.

  llama.py convert LLAMA_CPP                       runs the converter once for each line, a JSON list of the pre-tokenizer's name and the
                                                   arguments: the converter knows published tokenizers only, by a hash of what they make
                                                   of one text. Answers with the end of what it printed, or an empty line
  llama.py serve FOLDER BIN                        reads a request a line from standard input, as JSON, and answers each with a line

A request has `model`, `ids` and `n` (so many tokens of greedy text), `text` to be encoded, `out` (the .npy file for the logits of all ids)
and may have `rope`: fields of llama_context_params. Cells are F32, attention is not fused, weights are not repacked.
"""
import ctypes, json, os, runpy, sys, tempfile, traceback, types


def convert(root):
    """A child for each file: the packages are loaded once, and what the converter keeps of one file is gone at the next."""
    sys.path[:0] = [root, os.path.join(root, "gguf-py")]
    import torch, transformers.models.auto.tokenization_auto  # noqa: F401
    from conversion.base import ModelBase, TextModel
    torch.set_num_threads(1)
    whole = ModelBase.load_hparams

    def hparams(folder, is_mistral_format):
        """Transformers 5 gives Nemotron-H's without experts numbers of some: such a file is taken as it is."""
        file = folder / "config.json"
        raw = json.loads(file.read_text()) if file.exists() else {}
        return raw if "-" in raw.get("hybrid_override_pattern", "") else whole(folder, is_mistral_format)

    ModelBase.load_hparams = staticmethod(hparams)
    for line in sys.stdin:
        pre, *arguments = json.loads(line)
        with tempfile.TemporaryFile("w+") as log:
            child = os.fork()
            if child == 0:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
                sys.argv = [os.path.join(root, "convert_hf_to_gguf.py"), *arguments]
                status = 1
                try:
                    runpy.run_path(sys.argv[0], run_name="__main__")
                    status = 0
                except SystemExit as end:
                    status = 1 if end.code else 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush(), sys.stderr.flush()
                    os._exit(status)
            status = os.waitpid(child, 0)[1]
            log.seek(0)
            print(json.dumps(log.read()[-1500:] or "it failed") if status else "", flush=True)


class Library:
    def __init__(self, package, binaries):
        os.environ["LLAMA_CPP_LIB_PATH"] = binaries
        # The package's own start needs more packages; its declarations alone do not.
        sys.modules["llama_cpp"] = types.ModuleType("llama_cpp")
        sys.modules["llama_cpp"].__path__ = [os.path.join(package, "llama_cpp")]
        import llama_cpp.llama_cpp as api
        self.api = api
        self.quiet = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.quiet, ctypes.c_void_p(0))
        api.llama_backend_init()

    def answer(self, request):
        import numpy
        api = self.api
        params = api.llama_model_default_params()
        params.use_extra_bufts = False
        model = api.llama_model_load_from_file(request["model"].encode(), params)
        if not model:
            return {"error": "not loaded"}
        try:
            vocab = api.llama_model_get_vocab(model)
            ids = request["ids"] or self.encode(vocab, request["text"])
            context = api.llama_context_default_params()
            context.n_ctx = len(ids) + request["n"] + 8
            context.n_batch = context.n_ubatch = 512
            context.n_threads = context.n_threads_batch = 1
            context.type_k = context.type_v = 0     # F32
            context.flash_attn_type = 0             # off
            for field, value in request.get("rope", {}).items():
                setattr(context, field, value)
            ctx = api.llama_init_from_model(model, context)
            if not ctx:
                return {"error": "no context"}
            n_vocab = api.llama_vocab_n_tokens(vocab)
            rows = self.decode(ctx, ids, 0, n_vocab)
            numpy.save(request["out"], rows)
            greedy, margins, last = [], [], rows[-1]
            for i in range(request["n"]):
                second, first = numpy.partition(last, -2)[-2:]
                greedy.append(int(last.argmax()))
                margins.append(float(first - second))
                last = self.decode(ctx, greedy[-1:], len(ids) + i, n_vocab)[-1]
            api.llama_free(ctx)
            return {"greedy": greedy, "margins": margins, "ids": self.encode(vocab, request["text"])}
        finally:
            api.llama_model_free(model)

    def encode(self, vocab, text):
        data = text.encode()
        room = (self.api.llama_token * (len(data) + 8))()
        n = self.api.llama_tokenize(vocab, data, len(data), room, len(room), False, False)
        return list(room[:n])

    def decode(self, ctx, ids, first, n_vocab):
        import numpy
        api = self.api
        batch = api.llama_batch_init(len(ids), 0, 1)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, first + i, 1, 0, 1
        batch.n_tokens = len(ids)
        if api.llama_decode(ctx, batch):
            raise RuntimeError("llama_decode")
        rows = [numpy.ctypeslib.as_array(api.llama_get_logits_ith(ctx, i), (n_vocab,)).copy() for i in range(len(ids))]
        api.llama_batch_free(batch)
        return numpy.stack(rows)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["convert", root]:
            convert(root)
        case ["serve", package, binaries]:
            library = Library(package, binaries)
            for line in sys.stdin:
                try:
                    answer = library.answer(json.loads(line))
                except Exception as error:      # one file must not end the others
                    answer = {"error": f"{type(error).__name__}: {error}"}
                print(json.dumps(answer), flush=True)
        case _:
            sys.exit(__doc__)
