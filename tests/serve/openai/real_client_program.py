"""Runs in the environment of the published openai client and knows nothing of Ostinato.

``python real_client_program.py PORT IMAGE``; prints one JSON line of what it got.
"""

import base64
import json
import sys
import threading

import openai
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

with open(sys.argv[2], "rb") as file:
    image = base64.b64encode(file.read()).decode()
port = int(sys.argv[1])
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k1", max_retries=0)
model = client.models.list().data[0].id
picture = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{image}"}}
first = {"role": "user", "content": [picture, {"type": "text", "text": "what is this?"}]}
found = {
    "model": client.models.retrieve(model).id,
    "chat_fields": sorted(chat_params.CompletionCreateParamsBase.__annotations__),
    "text_fields": sorted(text_params.CompletionCreateParamsBase.__annotations__),
}

answer = client.chat.completions.create(
    model=model, messages=[first], logprobs=True, top_logprobs=1
)
found["first"] = answer.choices[0].message.content
found["image_tokens"] = answer.usage.prompt_tokens_details.image_tokens
found["logprobs"] = "".join(entry.token for entry in answer.choices[0].logprobs.content)

turns = [first, {"role": "assistant", "content": found["first"]}]
turns.append({"role": "user", "content": "are you sure?"})
stream = client.chat.completions.create(
    model=model, messages=turns, stream=True, stream_options={"include_usage": True}
)
texts, usage = [], None
for chunk in stream:
    texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    usage = chunk.usage or usage
found["second"], found["completion_tokens"] = "".join(texts), usage.completion_tokens
found["num_chunks"] = len(texts)

with client.chat.completions.stream(model=model, messages=turns) as helper:
    found["helper"] = helper.get_final_completion().choices[0].message.content

text = client.completions.create(model=model, prompt=["a", "b"], max_tokens=2, logprobs=1)
found["texts"] = [choice.text for choice in text.choices]


def ask(number):
    messages = [{"role": "user", "content": f"client {number}"}]
    reply = client.chat.completions.create(model=model, messages=messages)
    clients[number] = reply.choices[0].message.content


clients = {}
threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found["clients"] = [clients[number] for number in range(8)]

try:
    client.chat.completions.create(model=model, messages=turns, logit_bias={"5": 1})
except openai.BadRequestError as error:
    found["refused"] = [error.status_code, error.param, error.code]
try:
    client.chat.completions.create(model="other", messages=turns)
except openai.NotFoundError as error:
    found["missing"] = error.code
try:
    other = client.with_options(api_key="k2")
    other.models.list()
except openai.AuthenticationError as error:
    found["denied"] = error.code
print(json.dumps(found))
