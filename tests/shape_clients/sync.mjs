// Follows shapes with the npm client as an app does. Orders come as JSON lines on stdin, each is
// answered by one JSON line on stdout; the end of stdin ends the process.
//
//   {do: "follow", names, options, slow,    start a stream and a shape for each name; `resumes` asks
//    resumes}                               again where an answer broke off, as an app may
//   {do: "wait", names, rows, patience_ms}  until each of them is up to date with exactly these rows
//   {do: "look", name}                      its rows, and what the client met on its way
//   {do: "subset", name, params}            ask for a part of the rows, as requestSnapshot does
//   {do: "stop", names}

import { createInterface } from "node:readline"
import { isDeepStrictEqual } from "node:util"
import { Shape, ShapeStream } from "@electric-sql/client"

const TORN = "FetchError: terminated"
const followers = new Map()

class Follower {
  constructor(options, slow, resumes) {
    this.counts = { requests: 0, live: 0, sse: 0, refetches: 0, lost: 0, torn: 0, statuses: {} }
    this.errors = []
    this.watchers = new Set()
    this.ending = new AbortController()
    this.slow = slow
    this.stream = new ShapeStream({
      ...options,
      signal: this.ending.signal,
      backoffOptions: { initialDelay: 20, maxDelay: 500, multiplier: 1.3 },
      fetchClient: (url, init) => this.fetch(url, init),
      onError: (error) => {
        if (resumes && String(error) === TORN) {
          this.counts.torn += 1
          return {}
        }
        this.errors.push(String(error))
        this.wake()
      },
    })
    this.shape = new Shape(this.stream)
    this.stream.subscribe((messages) => {
      for (const message of messages) {
        if (message.headers.control === "must-refetch") this.counts.refetches += 1
      }
      this.wake()
    })
    this.shape.subscribe(() => this.wake())
  }

  wake() {
    for (const watcher of [...this.watchers]) watcher()
  }

  async fetch(url, init) {
    const asked = new URL(url).searchParams
    this.counts.requests += 1
    if (asked.has("live")) this.counts.live += 1
    let answer
    try {
      answer = await fetch(url, init)
    } catch (error) {
      if (!init?.signal?.aborted) this.counts.lost += 1
      throw error
    }
    const status = answer.status
    this.counts.statuses[status] = (this.counts.statuses[status] ?? 0) + 1
    if (answer.headers.get("content-type")?.startsWith("text/event-stream")) this.counts.sse += 1
    return this.slow && answer.body ? slowed(answer, this.slow) : answer
  }

  wait(rows, patienceMs) {
    return new Promise((resolve) => {
      const end = (isReached) => {
        clearTimeout(timer)
        this.watchers.delete(look)
        resolve(isReached)
      }
      const look = () => {
        if (this.errors.length > 0) end(false)
        else if (this.shape.isUpToDate && isDeepStrictEqual(this.rows(), rows)) end(true)
      }
      const timer = setTimeout(() => end(false), patienceMs)
      this.watchers.add(look)
      look()
    })
  }

  rows() {
    return Object.fromEntries(this.shape.currentValue)
  }

  facts() {
    const { handle, lastOffset: offset, isUpToDate: is_current } = this.shape
    return { ...this.counts, errors: this.errors, handle, offset, is_current }
  }

  stop() {
    this.stream.unsubscribeAll()
    this.ending.abort()
  }
}

function slowed(answer, { piece_bytes, rest_ms }) {
  const rest = new TransformStream({
    async transform(chunk, controller) {
      for (let start = 0; start < chunk.length; start += piece_bytes) {
        controller.enqueue(chunk.slice(start, start + piece_bytes))
        await new Promise((resolve) => setTimeout(resolve, rest_ms))
      }
    },
  })
  const { status, statusText, headers } = answer
  return new Response(answer.body.pipeThrough(rest), { status, statusText, headers })
}

const orders = {
  follow({ names, options, slow, resumes }) {
    for (const name of names) followers.set(name, new Follower(options, slow, resumes))
    return {}
  },
  async wait({ names, rows, patience_ms }) {
    const reached = await Promise.all(names.map((name) => get(name).wait(rows, patience_ms)))
    return { behind: names.filter((_, place) => !reached[place]) }
  },
  look({ name }) {
    return { rows: get(name).rows(), facts: get(name).facts() }
  },
  async subset({ name, params }) {
    await get(name).shape.requestSnapshot(params)
    return {}
  },
  stop({ names }) {
    for (const name of names) {
      get(name).stop()
      followers.delete(name)
    }
    return {}
  },
}

function get(name) {
  const follower = followers.get(name)
  if (!follower) throw new Error(`nobody is called ${name}`)
  return follower
}

async function answer(line) {
  const order = JSON.parse(line)
  try {
    return await orders[order.do](order)
  } catch (error) {
    return { error: String(error?.stack ?? error) }
  }
}

process.on("unhandledRejection", (error) => {
  console.error("unhandled", error)
  process.exit(1)
})

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(line)) + "\n")
}
process.exit(0)
