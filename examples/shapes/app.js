// Shows a shape as a table that changes by itself. The address of the page says where the shapes
// are served: ?shapes=http://host:port/v1/shape, and with &live=poll that it is to poll, not stream.
import { Shape, ShapeStream } from "@electric-sql/client"

const COLUMNS = ["key", "state", "town", "grams", "scans"]
const FILTERS = ["all", "waiting", "moving", "arrived"]
const asked = new URLSearchParams(location.search)
const page = Object.fromEntries(
  ["status", "rows", "changes", "filters"].map((id) => [id, document.getElementById(id)]),
)
const body = document.querySelector("tbody")

let ending = new AbortController()
let lines = new Map()
let changeCount = 0

function follow(filter) {
  ending.abort()
  ending = new AbortController()
  lines = new Map()
  body.replaceChildren()
  for (const button of page.filters.children) {
    button.setAttribute("aria-pressed", button.textContent === filter)
  }
  tell("connecting")
  const { signal } = ending
  const stream = new ShapeStream({
    url: asked.get("shapes"),
    params: {
      table: "parcels",
      ...(filter === "all" ? {} : { where: "state = $1", params: { 1: filter } }),
    },
    liveSse: asked.get("live") !== "poll",
    signal,
    onError: (error) => tell(error.message, "trouble"),
  })
  const shape = new Shape(stream)
  shape.subscribe(({ value }) => {
    if (signal.aborted) return
    show(value)
    if (shape.isUpToDate) tell("live", "live")
  })
}

function show(rows) {
  for (const [key, line] of lines) {
    if (rows.has(key)) continue
    line.remove()
    lines.delete(key)
    changeCount += 1
  }
  for (const [key, row] of rows) {
    if (!lines.has(key)) lines.set(key, insertLine(row.key))
    fill(lines.get(key), row)
  }
  page.rows.textContent = rows.size
  page.changes.textContent = changeCount
}

function insertLine(name) {
  const line = document.createElement("tr")
  line.dataset.key = name
  line.append(...COLUMNS.map(() => document.createElement("td")))
  const next = [...body.children].find((other) => comparesBefore(name, other.dataset.key))
  body.insertBefore(line, next ?? null)
  return line
}

function comparesBefore(name, other) {
  return name.localeCompare(other, undefined, { numeric: true }) < 0
}

function fill(line, row) {
  COLUMNS.forEach((column, place) => {
    const cell = line.children[place]
    const text = String(row[column] ?? "")
    if (cell.textContent === text) return
    changeCount += 1
    cell.textContent = text
    if (column === "state") cell.dataset.state = text
    cell.classList.toggle("number", typeof row[column] === "number")
    flash(cell)
  })
}

function flash(cell) {
  cell.classList.remove("changed")
  void cell.offsetWidth // the animation begins anew only after a layout without it
  cell.classList.add("changed")
}

function tell(text, kind = "") {
  page.status.textContent = text
  page.status.className = kind
}

document.querySelector("thead tr").append(
  ...COLUMNS.map((column) => {
    const head = document.createElement("th")
    head.textContent = column
    return head
  }),
)
page.filters.append(
  ...FILTERS.map((filter) => {
    const button = document.createElement("button")
    button.textContent = filter
    button.addEventListener("click", () => follow(filter))
    return button
  }),
)
follow("all")
