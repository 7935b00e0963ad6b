"""The commands, in the order in which they are offered: where the function of each is, and what its help ends with.

A function's signature is its command's options, its docstring the help.
"""

from __future__ import annotations

from heedful.cli.evaluation import compare, evaluate
from heedful.cli.export import export
from heedful.cli.information import doctor, list_presets, list_recipes, list_tasks
from heedful.cli.inspection import inspect, summary
from heedful.cli.parser import app
from heedful.cli.prediction import nearest, predict
from heedful.cli.train import audit, demo, train, watch
from heedful.cli.verification import proofs

__all__ = ["app"]

app.command(train, help_epilogue="Example:  heedful train translation --train train.en train.fr --out runs/en-fr")
app.command(audit, help_epilogue="Example:  heedful audit text-classification --train labels.csv --valid held.csv")
app.command(watch, help_epilogue="Example:  heedful watch runs")
app.command(
    predict,
    help_epilogue='Example:  heedful predict runs/en-fr "How are you?"\n'
    "A text that begins with a hyphen goes after --.",
)
app.command(evaluate, help_epilogue="Example:  heedful evaluate runs/en-fr --data test.en test.fr --num-beams 5")
app.command(compare, help_epilogue="Example:  heedful compare runs/small runs/large --data test.en test.fr")
app.command(nearest, help_epilogue='Example:  heedful nearest runs/near "how do I open a file?" --among notes')
app.command(proofs)
app.command(
    export, help_epilogue="Example:  heedful export runs/en-fr --to ctranslate2 --quantization int8 --out en-fr.ct2"
)
app.command(summary, help_epilogue="Example:  heedful summary bert-base --length 512 --batch 8")
app.command(
    inspect,
    help_epilogue='Example:  heedful inspect runs/en-fr "How are you?" --out look.html\n'
    "Decoding options are those of predict. A text that begins with a hyphen goes after --.",
)
app.command(list_presets, name="presets", help_epilogue="Example:  heedful summary vit-b/16")
app.command(
    list_recipes,
    name="recipes",
    help_epilogue="Example:  heedful train text-generation --recipe nanogpt-shakespeare-cpu ...",
)
app.command(list_tasks, name="tasks", help_epilogue="Example:  heedful train translation --help")
app.command(doctor, help_epilogue="Example:  heedful doctor --json")
app.command(demo, help_epilogue="Example:  heedful demo --to de\n          heedful demo --all")
