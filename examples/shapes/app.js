// Shows a shape as a table that changes by itself. The address of the page says where the shapes
// are served: ?shapes=http://host:port/v1/shape, and with &live=poll that it is to poll, not stream.
import { Shape, ShapeStream } from "@electric-sql/client"

const COLUMNS = ["key", "state", "town", "grams", "scans"]
const NUMBERS = ["grams", "scans"]
const FILTERS = ["all", "waiting", "moving", "arrived"]
const asked = new URLSearchParams(location.search)
const page = Object.fromEntries(
  ["status", "rows", "changes", "filters"].map((id) => [id, document.getElementById(id)]),
)
const body = document.querySelector("tbody")

let ending = new AbortController()
let lines = new Map()
let changeCount

function follow(filter) {
  ending.abort()
  ending = new AbortController()
  lines = new Map()
  changeCount = undefined
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
    onError: (error) => {
      tell(error.message, "trouble")
      // A body that broke off: nothing is lost by asking again. A wrong request stays wrong.
      return error.status >= 400 && error.status < 500 ? undefined : {}
    },
  })
  const shape = new Shape(stream)
  shape.subscribe(({ value }) => {
    if (signal.aborted) return
    show(value)
    watch(stream)
  })
  const watching = setInterval(() => watch(stream), 500)
  signal.addEventListener("abort", () => clearInterval(watching))
}

function watch(stream) {
  if (stream.error) tell(stream.error.message, "trouble")
  else if (!stream.isConnected()) tell("connecting")
  else if (stream.isUpToDate) tell("live", "live")
}

function show(rows) {
  let changed = 0
  for (const [key, line] of lines) {
    if (rows.has(key)) continue
    line.remove()
    lines.delete(key)
    changed += 1
  }
  for (const [key, row] of rows) {
    if (!lines.has(key)) lines.set(key, insertLine(row.key))
    if (fill(lines.get(key), row)) changed += 1
  }
  changeCount = changeCount === undefined ? 0 : changeCount + changed // the snapshot is no change
  page.rows.textContent = rows.size
  page.changes.textContent = changeCount
}

function insertLine(name) {
  const line = document.createElement("tr")
  line.dataset.key = name
  line.append(...COLUMNS.map((column) => makeCell("td", column)))
  const next = [...body.children].find((other) => comparesBefore(name, other.dataset.key))
  body.insertBefore(line, next ?? null)
  return line
}

function makeCell(tag, column) {
  const cell = document.createElement(tag)
  if (NUMBERS.includes(column)) cell.className = "number"
  return cell
}

function comparesBefore(name, other) {
  return name.localeCompare(other, undefined, { numeric: true }) < 0
}

function fill(line, row) {
  const changed = COLUMNS.map((column, place) => fillCell(line.children[place], column, row[column]))
  return changed.includes(true)
}

function fillCell(cell, column, value) {
  const text = String(value ?? "")
  if (cell.textContent === text) return false
  cell.textContent = text
  if (column === "state") cell.dataset.state = text
  flash(cell)
  return true
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
    const head = makeCell("th", column)
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
