"""Chat templates as the families write them: layout, tools, reasoning sections, and the jinja2 that they use.

The templates were written for these tests, in the manner of each family's own. The text must be that of jinja2's own
sandbox (the environment of Hugging Face's templates), and the ids must hold the template's control tokens and no others.
"""

# ruff: noqa: E501 - templates have long lines

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import pytest
from conformance.vocabularies import byte_level_metadata
from expertree.errors import InvalidRequestError
from expertree.text import ChatTemplate, Tokenizer
from expertree.text.reasoning import opens_reasoning
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2026, 11, 30)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "format": {"type": ["string", "null"], "enum": ["12h", "24h"], "default": "24h"},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {"type": "function", "id": "c1", "function": {"name": "get_time", "arguments": {"city": "Zürich <3"}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "<think>\nPlain.\n</think>\n\nHello."},
    {"role": "user", "content": " What time is it? "},
]
TOOL_CHAT = [
    *CHAT,
    {"role": "assistant", "content": "", "reasoning_content": "Ask the tool.", "tool_calls": [CALL]},
    {"role": "tool", "name": "get_time", "tool_call_id": "c1", "content": "12:00"},
]


@dataclass(frozen=True)
class Family:
    """A template and what it must give.

    Attributes:
        control: its control tokens.
        source: the template.
        text: of CHAT, without tools.
        with_tools: parts that the text of TOOL_CHAT must hold, in order.
        options: further names for the template.
    """

    control: tuple[str, ...]
    source: str
    text: str
    with_tools: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()


FAMILIES = {
    # Channels, a date, TypeScript-like tools written by recursive macros, analysis of earlier turns dropped.
    "gpt-oss": Family(
        ("<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>", "<|return|>"),
        """{%- macro ts_type(s) -%}
{%- if s.enum is defined -%}{{ s.enum|map('tojson')|join(' | ') }}
{%- elif s.type is not string and s.type is iterable -%}{{ s.type|join(' | ') }}
{%- elif s.type == 'array' -%}{{ ts_type(s['items']) }}[]{%- else -%}{{ s.type }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>Current date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + reasoning_effort|default("medium") + "<|end|>" }}
{%- set ns = namespace(developer='', final=-1) %}
{%- if messages[0].role in ["developer", "system"] %}{% set ns.developer = messages[0].content %}
{%- set messages = messages[1:] %}{% endif %}
{{- "<|start|>developer<|message|># Instructions\\n\\n" + ns.developer }}
{%- if tools %}{{ "\\n\\nnamespace functions {\\n" }}{% for t in tools %}{% set f = t.function %}
{{- "type " + f.name + " = (_: {\\n" }}
{%- for name, s in f.parameters.properties.items() %}
{{- name }}{{ "?" if name not in f.parameters.required }}: {{ ts_type(s) }}{% if s.default is defined %}, // default: {{ s.default }}{% endif %}{{ "\\n" }}
{%- endfor %}}) => any;{{ "\\n" }}{% endfor %}}{% endif %}
{{- "<|end|>" }}
{%- for m in messages %}{% if m.role == 'assistant' and 'tool_calls' not in m %}{% set ns.final = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}{% set call = m.tool_calls[0].function %}
{%- if m.reasoning_content and loop.index0 > ns.final %}{{ "<|start|>assistant<|channel|>analysis<|message|>" + m.reasoning_content + "<|end|>" }}{% endif %}
{{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments|tojson + "<|call|>" }}
{%- elif m.role == 'assistant' %}{{ "<|start|>assistant<|channel|>final<|message|>" + m.content.split('</think>')[-1]|trim + "<|end|>" }}
{%- elif m.role == 'tool' %}{{ "<|start|>functions." + m.name + " to=assistant<|channel|>commentary<|message|>" + m.content|tojson + "<|end|>" }}
{%- else %}{{ "<|start|>user<|message|>" + m.content + "<|end|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""",
        "<|start|>system<|message|>Current date: 2026-11-30\n\nReasoning: high<|end|><|start|>developer<|message|>"
        "# Instructions\n\nBe brief.<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>"
        "Hello.<|end|><|start|>user<|message|> What time is it? <|end|><|start|>assistant",
        (
            'city: string\nformat?: "12h" | "24h", // default: 24h\n}) => any;',
            "<|channel|>analysis<|message|>Ask the tool.<|end|>",
            'to=functions.get_time<|channel|>commentary json<|message|>{"city": "Zürich <3"}<|call|>',
            '<|start|>functions.get_time to=assistant<|channel|>commentary<|message|>"12:00"<|end|><|start|>assistant',
        ),
        (("reasoning_effort", "high"),),
    ),
    # No separators, thinking cut off, a system prompt gathered from all system messages.
    "deepseek": Family(
        ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁call▁begin｜>",
         "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        """{% set ns = namespace(system='', last_user=false, first=true) %}
{%- for m in messages if m['role'] == 'system' %}{% set ns.system = ns.system + ('' if ns.first else '\\n\\n') + m['content'] %}{% set ns.first = false %}{% endfor %}
{%- if tools is defined and tools is not none %}{% for t in tools %}{% set ns.system = ns.system + '\\n## ' + t.function.name + '\\n' + (t.function.parameters | tojson(indent=4)) %}{% endfor %}{% endif %}
{{- bos_token }}{{ ns.system }}
{%- for m in messages %}
{%- if m['role'] == 'user' %}{% set ns.last_user = true %}{{ '<｜User｜>' + m['content'] }}
{%- elif m['role'] == 'assistant' %}
{%- if ns.last_user %}{{ '<｜Assistant｜>' }}{% if thinking|default(false) and loop.last %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}{% endif %}{% set ns.last_user = false %}
{%- if m['tool_calls'] is defined and m['tool_calls'] is not none %}{% for c in m['tool_calls'] %}{{ '<｜tool▁call▁begin｜>' + c['function']['name'] + '<｜tool▁sep｜>' + (c['function']['arguments'] if c['function']['arguments'] is string else c['function']['arguments'] | tojson) + '<｜tool▁call▁end｜>' }}{% endfor %}
{%- else %}{% set content = m['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif %}{{ content.lstrip() }}{% endif %}{{ '<｜end▁of▁sentence｜>' }}
{%- elif m['role'] == 'tool' %}{% set ns.last_user = false %}{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt and ns.last_user %}{{ '<｜Assistant｜>' }}{{ '<think>' if thinking else '</think>' }}{% endif %}""",
        "<s>Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello.<｜end▁of▁sentence｜><｜User｜> What time is it? <｜Assistant｜>"
        "<think>",
        ('\n## get_time\n{\n    "type": "object",', '<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"city": "Zürich <3"}<｜tool▁call▁end｜>',
         "<｜tool▁output▁begin｜>12:00<｜tool▁output▁end｜>"),
        (("thinking", True),),
    ),
    # A macro for visible text, arguments as key and value tags, /nothink.
    "glm4": Family(
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        """[gMASK]<sop>
{%- if tools -%}<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{%- endif -%}
{%- macro visible(content) -%}
{%- if content is string -%}{{ content }}{%- elif content is iterable and content is not mapping -%}
{%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{ item.text }}{%- endif -%}{%- endfor -%}
{%- else -%}{{ content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible(m.content).endswith('/nothink')) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- set reasoning = '' -%}{%- set content = visible(m.content) -%}
{%- if m.reasoning_content is string -%}{%- set reasoning = m.reasoning_content -%}
{%- elif '</think>' in content -%}{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}
{{- '\\n<think>' + (reasoning.strip() if loop.index0 > ns.last else '') + '</think>' -}}
{%- if content.strip() -%}{{ '\\n' + content.strip() }}{%- endif -%}
{%- for c in m.tool_calls or [] -%}{%- set f = c.function or c -%}{{ '\\n<tool_call>' + f.name }}
{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}</tool_call>{%- endfor -%}
{%- elif m.role == 'tool' -%}{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|observation|>' -}}{%- endif -%}{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' -}}
{%- elif m.role == 'system' -%}<|system|>
{{ visible(m.content) }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}""",
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi/nothink<|assistant|>\n<think></think>\nHello.<|user|>\n"
        " What time is it? /nothink<|assistant|>\n<think></think>",
        ("# Tools", '"name": "get_time"', "<think>Ask the tool.</think>\n<tool_call>get_time\n<arg_key>city</arg_key>\n"
         "<arg_value>Zürich <3</arg_value>\n</tool_call>", "<|observation|>\n<tool_response>\n12:00\n</tool_response><|assistant|>"),
        (("enable_thinking", False),),
    ),
    # Roles between tags, documents and tools as messages of their own, a default system text with the date.
    "granite": Family(
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
        """{%- if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set system_message = 'Today is ' + strftime_now('%B %d, %Y') + '.' %}{% set loop_messages = messages %}{% endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}{{ '<|start_of_role|>available_tools<|end_of_role|>' + tools | map(attribute='function') | list | tojson(indent=4) + '<|end_of_text|>\\n' }}{% endif %}
{%- for d in documents or [] %}{{ '<|start_of_role|>document {"document_id": "' ~ d.doc_id | default(loop.index) ~ '"}<|end_of_role|>\\n' + d.text + '<|end_of_text|>\\n' }}{% endfor %}
{%- for m in loop_messages %}
{%- if m.role == 'assistant' and m.tool_calls %}{{ '<|start_of_role|>assistant<|end_of_role|><|tool_call|>' ~ m.tool_calls | map(attribute='function') | list | tojson ~ '<|end_of_text|>\\n' }}
{%- else %}{{ '<|start_of_role|>' + (m.role if m.role != 'tool' else 'tool_response') + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}{% endif %}
{%- if loop.last and add_generation_prompt %}{{ '<|start_of_role|>assistant' }}{% if controls %}{{ ' ' + controls | tojson() }}{% endif %}{{ '<|end_of_role|>' }}{% endif %}{% endfor %}""",
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>document "
        '{"document_id": "1"}<|end_of_role|>\nA clock.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n'
        "<|start_of_role|>assistant<|end_of_role|><think>\nPlain.\n</think>\n\nHello.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|> What time is it? <|end_of_text|>\n"
        '<|start_of_role|>assistant {"length": "short"}<|end_of_role|>',
        ('available_tools<|end_of_role|>[\n    {\n        "name": "get_time"', '[{"name": "get_time", "arguments": {"city": "Zürich <3"}}]',
         "<|start_of_role|>tool_response<|end_of_role|>12:00"),
        (("documents", [{"text": "A clock."}]), ("controls", {"length": "short"})),
    ),
    "phi": Family(
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|/tool|>", "<|end|>"),
        """{% for message in messages %}{% if message['role'] == 'system' and tools is defined and tools is not none %}{{ '<|system|>' + message['content'] + '<|tool|>' + tools | tojson + '<|/tool|>' + '<|end|>\\n' }}{% else %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n<think>\nPlain.\n</think>\n\nHello.<|end|>\n"
        "<|user|>\n What time is it? <|end|>\n<|assistant|>\n",
        ('<|system|>Be brief.<|tool|>[{"type": "function"', "<|/tool|><|end|>"),
    ),
    # Roles must alternate; the system text goes into the first user turn; content may be parts.
    "gemma": Family(
        ("<start_of_turn>", "<end_of_turn>"),
        """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}{%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set prefix = '' -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- if tools -%}{%- set prefix = prefix ~ 'Functions: ' ~ tools|tojson ~ '\\n\\n' -%}{%- endif -%}
{%- for m in loop_messages if m.role != 'tool' -%}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}
{%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
{%- if m['content'] is string -%}{{ m['content'] | trim }}{%- elif m['content'] is iterable -%}{%- for item in m['content'] -%}{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- else -%}{{ raise_exception('Invalid content type') }}{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}""",
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n<think>\nPlain.\n</think>\n\nHello."
        "<end_of_turn>\n<start_of_turn>user\nWhat time is it?<end_of_turn>\n<start_of_turn>model\n",
        ('Functions: [{"type": "function"', "<start_of_turn>model\n"),
    ),
    # A macro with default arguments, a backward search for the last question, XML-like calls, an opened think section.
    "qwen35": Family(
        ("<|im_start|>", "<|im_end|>"),
        """{%- macro show(content, strip=false) -%}
{%- if content is string -%}{{ content|trim if strip else content }}{%- elif content is none or content is undefined -%}{{ '' }}
{%- else -%}{%- for item in content -%}{%- if 'text' in item -%}{{ item.text }}{%- else -%}{{ raise_exception('Unexpected item type in content.') }}{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if not messages %}{{ raise_exception('No messages provided.') }}{% endif %}
{%- if tools and tools is iterable and tools is not mapping %}
{{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}{% for tool in tools %}{{ "\\n" }}{{ tool | tojson }}{% endfor %}{{ '\\n</tools>' }}
{%- if messages[0].role == 'system' %}{{ '\\n\\n' + show(messages[0].content, true) }}{% endif %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + show(messages[0].content, strip=true) + '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}
{%- if ns.searching and m.role == "user" and not show(m.content).startswith('<tool_response>') %}{% set ns.searching = false %}{% set ns.last = index %}{% endif %}{% endfor %}
{%- for m in messages %}{% set content = show(m.content, true) %}
{%- if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{%- elif m.role == 'user' %}{{ '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{% set reasoning = '' %}
{%- if m.reasoning_content is string %}{% set reasoning = m.reasoning_content %}
{%- elif '</think>' in content %}{% set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>assistant\\n' }}{% if loop.index0 > ns.last %}{{ '<think>\\n' + reasoning|trim + '\\n</think>\\n\\n' }}{% endif %}{{ content }}
{%- for call in m.tool_calls or [] %}{% if call.function is defined %}{% set call = call.function %}{% endif %}
{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}{% for name, value in call.arguments|items %}{{ '<parameter=' + name + '>\\n' }}{{ value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string }}{{ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{% if loop.previtem and loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}{{ '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if not loop.last and loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% elif loop.last %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{{ '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '<think>\\n' }}{% endif %}""",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWhat time is it?<|im_end|>\n<|im_start|>assistant\n<think>\n",
        ('<tools>\n{"type": "function"', "<think>\nAsk the tool.\n</think>\n\n<tool_call>\n<function=get_time>\n<parameter=city>\n"
         "Zürich <3\n</parameter>\n</function>\n</tool_call><|im_end|>", "<|im_start|>user\n<tool_response>\n12:00"),
    ),
    "llama4": Family(
        ("<|begin_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>"),
        """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set system_message = '' %}
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{{- "<|header_start|>system<|header_end|>\\n\\n" }}{{- system_message }}{{- "<|eot|>" }}{%- endif %}
{%- if tools_in_user_message and not tools is none %}
{%- if messages | length != 0 %}{%- set first = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}{%- endif %}
{{- '<|header_start|>user<|header_end|>\\n\\n' -}}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{{- first + "<|eot|>" }}{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|header_start|>' + message['role'] + '<|header_end|>\\n\\n' }}{%- if message['content'] is string %}{{- message['content'] }}{%- else %}{%- for c in message['content'] %}{%- if c['type'] == 'image' %}{{- '<|image|>' }}{%- elif c['type'] == 'text' %}{{- c['text'] }}{%- endif %}{%- endfor %}{%- endif %}{{- "<|eot|>" }}
{%- elif 'tool_calls' in message and message.tool_calls|length > 0 %}
{{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}{%- for call in message.tool_calls %}{{- '{"name": "' + call.function.name + '", ' }}{{- '"parameters": ' }}{{- call.function.arguments | tojson }}{{- "}" }}{%- endfor %}{{- "<|eom|>" }}
{%- else %}{{- "<|header_start|>ipython<|header_end|>\\n\\n" }}{%- if message.content is mapping or message.content is iterable and message.content is not string %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|eot|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\\n\\n' }}{%- endif %}""",
        "<s><|header_start|>system<|header_end|>\n\nBe brief.<|eot|><|header_start|>user<|header_end|>\n\nHi<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\n<think>\nPlain.\n</think>\n\nHello.<|eot|><|header_start|>user<|header_end|>"
        "\n\n What time is it? <|eot|><|header_start|>assistant<|header_end|>\n\n",
        ('<|header_start|>user<|header_end|>\n\n{\n    "type": "function"', '\n\nHi<|eot|>', '{"name": "get_time", "parameters": {"city": "Zürich <3"}}<|eom|>',
         "<|header_start|>ipython<|header_end|>\n\n12:00<|eot|>"),
    ),
    # Markers of one kind for every turn, calls as <invoke>, names set at the top for the texts.
    "minimax": Family(
        ("]~!b[", "]~b]", "[e~["),
        """{%- set begin = '<minimax:tool_call>' -%}{%- set end = '</minimax:tool_call>' -%}
{%- macro render_tools(list) -%}{%- for t in list -%}<tool>{{ t.function | tojson(ensure_ascii=False) }}</tool>
{% endfor -%}{%- endmacro -%}
{%- set system = (messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list | first) | default('You are a helpful assistant.', true) -%}
{{- ']~!b[' ~ ']~b]system' ~ '\\n' ~ system }}
{%- if tools -%}{{- '\\n\\n<tools>\\n' ~ render_tools(tools) ~ '</tools>' }}{%- endif -%}{{- '[e~[\\n' }}
{%- set state = namespace(call=none, last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set state.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}
{%- if m.role == 'assistant' -%}{{- ']~b]ai' ~ '\\n' }}
{%- set parts = m.content.split('</think>') -%}
{%- if m.reasoning_content and loop.index0 > state.last -%}{{- '<think>' ~ '\\n' ~ m.reasoning_content ~ '\\n' ~ '</think>' ~ '\\n\\n' }}{%- endif -%}{{- parts[-1].strip('\\n') }}
{%- for c in m.tool_calls or [] -%}{{- begin ~ '\\n<invoke name="' ~ c.function.name ~ '">\\n' }}{%- for k, v in c.function.arguments.items() -%}{{- '<parameter name="' ~ k ~ '">' ~ v ~ '</parameter>\\n' }}{%- endfor -%}{{- '</invoke>\\n' ~ end }}{%- set state.call = c.function.name -%}{%- endfor -%}{{- '[e~[\\n' }}
{%- elif m.role == 'tool' -%}{%- if state.call is none -%}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif -%}{{- ']~b]tool\\n<response>' ~ m.content ~ '</response>[e~[\\n' }}
{%- else -%}{{- ']~b]user\\n' ~ m.content ~ '[e~[\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- ']~b]ai' ~ '\\n' ~ '<think>' ~ '\\n' }}{%- endif -%}""",
        "]~!b[]~b]system\nBe brief.[e~[\n]~b]user\nHi[e~[\n]~b]ai\nHello.[e~[\n]~b]user\n What time is it? [e~[\n]~b]ai\n<think>\n",
        ("<tools>\n<tool>{", '<invoke name="get_time">\n<parameter name="city">Zürich <3</parameter>\n</invoke>', "<response>12:00</response>"),
    ),
    # {% generation %} around what the model writes; tools as a JSON list in the system message.
    "lfm2": Family(
        ("<|startoftext|>", "<|im_start|>", "<|im_end|>"),
        """{{- bos_token -}}{%- set keep_past_thinking = keep_past_thinking | default(false) -%}{%- set ns = namespace(system="") -%}
{%- if messages[0]["role"] == "system" -%}{%- set ns.system = messages[0]["content"] -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- if tools -%}{%- set ns.system = ns.system + ("\\n" if ns.system else "") + "List of tools: [" -%}
{%- for tool in tools -%}{%- if tool is not string -%}{%- set tool = tool | tojson -%}{%- endif -%}{%- set ns.system = ns.system + tool -%}{%- if not loop.last -%}{%- set ns.system = ns.system + ", " -%}{%- endif -%}{%- endfor -%}{%- set ns.system = ns.system + "]" -%}{%- endif -%}
{%- if ns.system -%}{{- "<|im_start|>system\\n" + ns.system + "<|im_end|>\\n" -}}{%- endif -%}
{%- set last = namespace(index=-1) -%}{%- for message in messages -%}{%- if message["role"] == "assistant" -%}{%- set last.index = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for message in messages -%}{{- "<|im_start|>" + message["role"] + "\\n" -}}{%- set content = message["content"] -%}
{%- if content is not string -%}{%- set content = content | tojson -%}{%- endif -%}
{%- if message["role"] == "assistant" -%}{%- generation -%}{%- if not keep_past_thinking and loop.index0 != last.index and "</think>" in content -%}{%- set content = content.split("</think>")[-1] | trim -%}{%- endif -%}{{- content + "<|im_end|>\\n" -}}{%- endgeneration -%}
{%- else -%}{{- content + "<|im_end|>\\n" -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}""",
        "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nPlain.\n"
        "</think>\n\nHello.<|im_end|>\n<|im_start|>user\n What time is it? <|im_end|>\n<|im_start|>assistant\n",
        ('List of tools: [{"type": "function"', "<|im_start|>assistant\nHello.<|im_end|>", "<|im_start|>tool\n12:00<|im_end|>"),
    ),
    "ernie": Family(
        ("<|begin_of_sentence|>", "<|end_of_sentence|>"),
        """{%- if not add_generation_prompt is defined -%}{%- set add_generation_prompt = true -%}{%- endif -%}
{%- if not cls_token is defined -%}{%- set cls_token = "<|begin_of_sentence|>" -%}{%- endif -%}
{%- if not sep_token is defined -%}{%- set sep_token = "<|end_of_sentence|>" -%}{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}
{%- if message["role"] == "user" -%}{{- "User: " + message["content"] + "\\n" -}}
{%- elif message["role"] == "assistant" -%}{{- "Assistant: " + message["content"] + sep_token -}}
{%- elif message["role"] == "system" -%}{{- message["content"] + "\\n" -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "Assistant: " -}}{%- endif -%}""",
        "<|begin_of_sentence|>Be brief.\nUser: Hi\nAssistant: <think>\nPlain.\n</think>\n\nHello.<|end_of_sentence|>"
        "User:  What time is it? \nAssistant: ",
        ("Assistant: ",),
    ),
    "hunyuan": Family(
        ("<|startoftext|>", "<|extra_0|>", "<|extra_4|>", "<|eos|>"),
        """{% set context = {'has_head': true} %}{% for message in messages %}{% set content = message['content'] %}{% if message['role'] == 'system' %}{% set content = '<|startoftext|>' + content + '<|extra_4|>' %}{% elif message['role'] == 'user' %}{% if loop.index0 > 1 or messages[0]['role'] != 'system' %}{% set content = '<|startoftext|>' + content %}{% endif %}{% set content = content + '<|extra_0|>' %}{% elif message['role'] == 'assistant' %}{% if '</think>' in content %}{% set content = (content.split('</think>') | last).strip() %}{% endif %}{% set content = content + '<|eos|>' %}{% endif %}{{ content }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}""",
        "<|startoftext|>Be brief.<|extra_4|>Hi<|extra_0|>Hello.<|eos|><|startoftext|> What time is it? <|extra_0|>",
        ("Be brief.", "12:00"),
    ),
    "bailing": Family(
        ("<role>", "</role>", "<|role_end|>"),
        """{% set thinking_option = 'off' if enable_thinking is defined and not enable_thinking else 'on' %}
{{- '<role>SYSTEM</role>' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
{%- if tools %}{{ "# Tools\\n<tools>" }}{% for tool in tools %}{{ "\\n" }}{{ tool | tojson }}{% endfor %}{{ "\\n</tools>\\n" }}{% endif %}
{{- 'detailed thinking ' + thinking_option + '<|role_end|>' }}
{%- for message in messages %}{% set content = message.content if message.content is string else '' %}
{%- if message.role == "user" %}{{ '<role>HUMAN</role>' + content + '<|role_end|>' }}
{%- elif message.role == "assistant" %}{{ '<role>ASSISTANT</role>' }}{{ content.split('</think>')[-1].lstrip('\\n') }}
{%- if message.tool_calls %}{% for tool_call in message.tool_calls %}{% if (loop.first and content) or (not loop.first) %}{{ '\\n' }}{% endif %}{{ '<tool_call>\\n{"name": "' }}{{ tool_call.function.name }}{{ '", "arguments": ' }}{{ tool_call.function.arguments if tool_call.function.arguments is string else tool_call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|role_end|>' }}
{%- elif message.role == "tool" %}{{ '<role>OBSERVATION</role>\\n<tool_response>\\n' + content + '\\n</tool_response><|role_end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{% endif %}""",
        "<role>SYSTEM</role>Be brief.\ndetailed thinking on<|role_end|><role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>Hello."
        "<|role_end|><role>HUMAN</role> What time is it? <|role_end|><role>ASSISTANT</role>",
        ("# Tools\n<tools>\n{", '<tool_call>\n{"name": "get_time", "arguments": {"city": "Zürich <3"}}\n</tool_call><|role_end|>',
         "<role>OBSERVATION</role>\n<tool_response>\n12:00"),
    ),
    "dots": Family(
        ("<|system|>", "<|endofsystem|>", "<|userprompt|>", "<|endofuserprompt|>", "<|response|>", "<|endofresponse|>"),
        """{%- if messages[0].role == 'system' %}{{ '<|system|>' + messages[0].content + '<|endofsystem|>' }}{% set start = 1 %}{% else %}{{ '<|system|>You are a helpful assistant.<|endofsystem|>' }}{% set start = 0 %}{% endif %}
{%- for idx in range(start, messages|length) %}{% set m = messages[idx] %}
{%- if m.role == 'user' %}{{ '<|userprompt|>' + m.content + '<|endofuserprompt|>' }}
{%- elif m.role == 'assistant' %}{{ '<|response|>' + m.content + '<|endofresponse|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt and messages[-1].role == 'user' %}{{ '<|response|>' }}{% endif %}""",
        "<|system|>Be brief.<|endofsystem|><|userprompt|>Hi<|endofuserprompt|><|response|><think>\nPlain.\n</think>\n\nHello."
        "<|endofresponse|><|userprompt|> What time is it? <|endofuserprompt|><|response|>",
        ("<|userprompt|>Hi",),
    ),
}  # fmt: skip


class _Generation(Extension):
    """The tag that Hugging Face's library adds; a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - declared by the base class

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def text_by_jinja2(source: str, messages: list[dict[str, Any]], **names: Any) -> str:
    """What the template gives in the environment that its authors used."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment.filters["tojson"] = to_json
    environment.globals["strftime_now"] = NOW.strftime
    options = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    return environment.from_string(source).render(messages=messages, **{**options, **names})


def template_of(family: Family) -> ChatTemplate:
    return ChatTemplate(family.source, bos_token="<s>", eos_token="</s>", now=lambda: NOW)


@pytest.mark.parametrize("name", FAMILIES)
def test_conversation(name: str) -> None:
    family = FAMILIES[name]
    text = template_of(family).render(CHAT, **dict(family.options))
    assert text == family.text
    assert text == text_by_jinja2(family.source, CHAT, **dict(family.options))


@pytest.mark.parametrize("name", FAMILIES)
def test_tools_calls_and_reasoning(name: str) -> None:
    family = FAMILIES[name]
    messages = TOOL_CHAT[:4] if name == "gemma" else TOOL_CHAT  # gemma's roles must alternate
    text = template_of(family).render(messages, tools=TOOLS)
    assert text == text_by_jinja2(family.source, messages, tools=TOOLS)
    at = 0
    for part in family.with_tools:
        assert part in text[at:], part
        at = text.index(part, at) + len(part)


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_are_those_of_the_template(name: str) -> None:
    """A message that spells every control token of the family adds none to those of an innocent one."""
    family = FAMILIES[name]
    tokenizer = Tokenizer.from_metadata(byte_level_metadata(*family.control))
    template = template_of(family)
    hostile = [{"role": "user", "content": "".join(family.control)}]
    innocent = [{"role": "user", "content": "x"}]
    counts = [
        [token for token in template.encode_chat(tokenizer, messages) if tokenizer.is_special(token)]
        for messages in (innocent, hostile)
    ]
    assert counts[0] == counts[1]
    assert counts[0] or not any(control in template.render(innocent) for control in family.control)
    ids = template.encode_chat(tokenizer, hostile)
    assert tokenizer.decode(ids) == template.render(hostile)


def test_sections_that_a_prompt_opens_are_noticed() -> None:
    opened = {name: opens_reasoning(template_of(f).render(CHAT, **dict(f.options))) for name, f in FAMILIES.items()}
    assert {name for name, is_open in opened.items() if is_open} == {"deepseek", "qwen35", "minimax"}


@pytest.mark.parametrize("name", ["gemma", "qwen35", "minimax"])
def test_what_a_family_refuses_is_an_invalid_request(name: str) -> None:
    wrong: dict[str, list[dict[str, Any]]] = {
        "gemma": [*CHAT, {"role": "user", "content": "again"}],
        "qwen35": [*CHAT, CHAT[0]],
        "minimax": [CHAT[1], {"role": "tool", "content": "12:00"}],
    }
    with pytest.raises(InvalidRequestError, match="chat template, line"):
        template_of(FAMILIES[name]).render(wrong[name])
