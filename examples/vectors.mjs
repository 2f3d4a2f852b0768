// Reads the test vectors without any package, and checks a naive attention against every case that it can ask.
//
//   node examples/vectors.mjs [FOLDER]
//
// The format is described in docs/vectors.md; this file needs nothing else.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const FORMAT = 1;
const EPSILON = { float64: 2 ** -52, float32: 2 ** -23, float16: 2 ** -10, bfloat16: 2 ** -7 };

// ---- Files ----------------------------------------------------------------------------------------------------------

function sha256(bytes) {
  return createHash("sha256").update(bytes).digest("hex");
}

function refuse(what) {
  throw new Error(what);
}

function readJson(folder, name, wanted) {
  const text = readFileSync(join(folder, name), "utf8").replaceAll("\r\n", "\n");
  if (wanted !== undefined && sha256(text) !== wanted) refuse(`${name} is not the file that index.json lists`);
  const document = JSON.parse(text);
  if (document.format !== FORMAT) refuse(`${name} has format ${document.format}; this reader knows ${FORMAT}`);
  return document;
}

function readGroup(folder, entry) {
  const group = readJson(folder, `${entry.group}.json`, entry.sha256);
  const { file, bytes, sha256: wanted } = group.tensors;
  const data = readFileSync(join(folder, basename(file)));
  if (data.length !== bytes) refuse(`${file} has ${data.length} of ${bytes} bytes`);
  if (sha256(data) !== wanted) refuse(`${file} is damaged`);
  return { ...group, tensors: decode(data) };
}

// ---- safetensors ----------------------------------------------------------------------------------------------------

const READERS = {
  F64: [8, (view, at) => view.getFloat64(at, true)],
  F32: [4, (view, at) => view.getFloat32(at, true)],
  F16: [2, (view, at) => half(view.getUint16(at, true))],
  BF16: [2, (view, at) => bits32(view.getUint16(at, true) * 65536)],
  I64: [8, (view, at) => Number(view.getBigInt64(at, true))],
  I32: [4, (view, at) => view.getInt32(at, true)],
  BOOL: [1, (view, at) => view.getUint8(at) !== 0],
};

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
}

function bits32(bits) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, bits);
  return view.getFloat32(0);
}

function decode(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(data.subarray(8, start).toString("utf8"));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (!(dtype in READERS)) refuse(`tensor ${name} has dtype ${dtype}`);
    const [width, read] = READERS[dtype];
    const count = shape.reduce((product, size) => product * size, 1);
    if (data_offsets[1] - data_offsets[0] !== count * width) refuse(`tensor ${name} has another size than its shape`);
    const values = Array.from({ length: count }, (_, i) => read(view, start + data_offsets[0] + i * width));
    tensors[name] = { shape, values };
  }
  return tensors;
}

// ---- Arrays: {shape, values}, row-major -----------------------------------------------------------------------------

function strides(shape) {
  const found = new Array(shape.length).fill(1);
  for (let axis = shape.length - 2; axis >= 0; axis--) found[axis] = found[axis + 1] * shape[axis + 1];
  return found;
}

// The entry at an index of more axes, by NumPy's rules of broadcasting: axes align on the right, 1 repeats.
function at(array, index) {
  const skip = index.length - array.shape.length;
  const step = strides(array.shape);
  let place = 0;
  array.shape.forEach((size, axis) => (place += step[axis] * (size === 1 ? 0 : index[skip + axis])));
  return array.values[place];
}

function filled(shape, value) {
  const indices = [];
  const walk = (index) => {
    if (index.length === shape.length) indices.push(index);
    else for (let i = 0; i < shape[index.length]; i++) walk([...index, i]);
  };
  walk([]);
  return { shape, values: indices.map(value) };
}

function swapAxes(array) {
  const axis = array.shape.length - 3;
  const swap = (list) => [...list.slice(0, axis), list[axis + 1], list[axis], ...list.slice(axis + 2)];
  return filled(swap(array.shape), (index) => at(array, swap(index)));
}

function fromLists(value) {
  const shape = [];
  for (let each = value; Array.isArray(each); each = each[0]) shape.push(each.length);
  return { shape, values: [value].flat(Infinity) };
}

// ---- The rules of masks and biases ----------------------------------------------------------------------------------

class Unknown extends Error {}

// What a rule may ask of a pair: indices i and j, positions q and k, and integers that stand in the rule.
function pairReader(parameters, inputs, queries, keys) {
  const lowerRight = hasRule(parameters.mask, "causal_lower_right") ? keys - queries : 0;
  const numbers = (value) => (typeof value === "string" ? inputs[value] : fromLists(value));
  const positions = (value, shift) => (Number.isInteger(value) ? (b, i) => value + shift + i : along(numbers(value)));
  const query = positions(parameters.query_positions, lowerRight);
  const key = positions(parameters.key_positions, 0);
  return { numbers, pair: (b, i, j) => ({ b, i, j, q: query(b, i), k: key(b, j) }) };
}

// One integer for each batch item and place: an array (..., L).
function along(array) {
  return (b, place) => at(array, [...b, place]);
}

function hasRule(rule, name) {
  return rule !== null && (rule.rule === name || (rule.of ?? []).some((part) => hasRule(part, name)));
}

function perItem(reader, value, b) {
  const array = reader.numbers(value);
  return array.shape.length ? at(array, b) : array.values[0];
}

const MASKS = {
  dense: (rule, p, h, reader) => at(reader.inputs[rule.input ?? "mask"], [...p.b, h, p.i, p.j]),
  causal: (rule, p) => p.k <= p.q,
  causal_lower_right: (rule, p) => p.k <= p.q,
  sliding_window: (rule, p) =>
    (rule.left === null || p.q - rule.left <= p.k) && (rule.right === null || p.k <= p.q + rule.right),
  key_lengths: (rule, p, h, reader) => p.j < perItem(reader, rule.lengths, p.b),
  query_lengths: (rule, p, h, reader) => p.i < perItem(reader, rule.lengths, p.b),
  prefix: (rule, p, h, reader) => p.k < perItem(reader, rule.length, p.b),
  chunked: (rule, p) => Math.floor(p.q / rule.size) === Math.floor(p.k / rule.size),
  dilated: (rule, p) => (p.k - p.q) % rule.step === 0,
  global_tokens: (rule, p) => p.q < rule.count || p.k < rule.count,
  segments: (rule, p, h, reader) => {
    const query = along(reader.numbers(rule.query_ids))(p.b, p.i);
    const key = along(reader.numbers(rule.key_ids ?? rule.query_ids))(p.b, p.j);
    return query === key && query >= 0;
  },
  and: (rule, ...rest) => rule.of.every((part) => visible(part, ...rest)),
  or: (rule, ...rest) => rule.of.some((part) => visible(part, ...rest)),
  not: (rule, ...rest) => !visible(rule.of[0], ...rest),
};

function visible(rule, pair, head, reader) {
  if (rule === null) return true;
  if (!(rule.rule in MASKS)) throw new Unknown(`mask rule ${rule.rule}`);
  return MASKS[rule.rule](rule, pair, head, reader);
}

function alibiSlopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  return Array.from({ length: heads }, (_, h) =>
    h < power ? 2 ** ((-8 * (h + 1)) / power) : 2 ** ((-4 * (2 * (h - power) + 1)) / power),
  );
}

function bucket(distance, buckets, bidirectional, maxDistance) {
  const side = bidirectional ? buckets / 2 : buckets;
  const first = bidirectional && distance > 0 ? side : 0;
  const steps = bidirectional ? Math.abs(distance) : Math.max(-distance, 0);
  const exact = Math.floor(side / 2);
  if (steps < exact) return first + steps;
  const log = Math.log(steps / exact) / Math.log(maxDistance / exact);
  return first + Math.min(exact + Math.floor(log * (side - exact) + 1e-9), side - 1);
}

const BIASES = {
  dense: (rule, p, h, reader) => at(reader.inputs[rule.input ?? "bias"], [...p.b, h, p.i, p.j]),
  alibi: (rule, p, h, reader) => {
    const given = rule.slopes;
    const slopes = Number.isInteger(given) ? alibiSlopes(given) : reader.numbers(given).values;
    return -slopes[h] * Math.abs(p.q - p.k);
  },
  relative: (rule, p, h, reader) => {
    const table = reader.inputs[rule.table];
    const row = bucket(p.k - p.q, table.shape[0], rule.bidirectional ?? true, rule.max_distance ?? 128);
    return at(table, [row, h]);
  },
  sum: (rule, ...rest) => rule.of.reduce((total, part) => total + added(part, ...rest), 0),
};

function added(rule, pair, head, reader) {
  if (rule === null) return 0;
  if (!(rule.rule in BIASES)) throw new Unknown(`bias rule ${rule.rule}`);
  return BIASES[rule.rule](rule, pair, head, reader);
}

// ---- Attention, as the formula says it, in float64 ------------------------------------------------------------------

function attention(inputs, parameters) {
  const plain = inputs.query.shape.length === 2;
  const swapped = !plain && parameters.layout === "BLHD";
  const [query, key, value] = ["query", "key", "value"].map((name) => headsFirst(inputs[name], plain, swapped));
  const batch = broadcast([query, key, value].map((array) => array.shape.slice(0, -3)));
  const [heads, queries, depth] = query.shape.slice(-3);
  const [keyHeads, keys] = key.shape.slice(-3);
  const columns = value.shape.at(-1);
  const group = heads / keyHeads;
  const reader = { inputs, ...pairReader(parameters, inputs, queries, keys) };
  const sinks = parameters.sinks === null ? null : inputs[parameters.sinks];
  const stages = { scaled: [], capped: [], biased: [], masked: [] };
  const found = { out: [], lse: [], weights: [] };

  for (const index of filled([...batch, heads, queries], (each) => each).values) {
    const b = index.slice(0, batch.length);
    const [h, i] = index.slice(-2);
    const row = [];
    for (let j = 0; j < keys; j++) {
      const pair = reader.pair(b, i, j);
      let dot = 0;
      for (let d = 0; d < depth; d++) dot += at(query, [...b, h, i, d]) * at(key, [...b, Math.floor(h / group), j, d]);
      const scaled = parameters.scale * dot;
      const capped = parameters.softcap === null ? scaled : parameters.softcap * Math.tanh(scaled / parameters.softcap);
      const bias = added(parameters.bias, pair, h, reader);
      const biased = capped + bias;
      const masked = visible(parameters.mask, pair, h, reader) && bias !== -Infinity ? biased : -Infinity;
      stages.scaled.push(scaled);
      stages.capped.push(capped);
      stages.biased.push(biased);
      stages.masked.push(masked);
      row.push(masked);
    }
    const sink = sinks === null ? -Infinity : sinks.values[h];
    const { weights, lse } = softmax(row, sink);
    found.lse.push(lse);
    found.weights.push(...weights);
    const kept = dropped(weights, parameters.dropout, inputs, batch, [...b, h, i]);
    for (let c = 0; c < columns; c++) {
      let total = 0;
      // A weight of 0 takes nothing, whatever stands in the value.
      kept.forEach((p, j) => (total += p === 0 ? 0 : p * at(value, [...b, Math.floor(h / group), j, c])));
      found.out.push(total);
    }
  }

  const perRow = plain ? [queries] : [...batch, heads, queries];
  const outShape = plain ? [queries, columns] : [...batch, heads, queries, columns];
  const out = { shape: outShape, values: found.out };
  const pairs = (values) => ({ shape: [...perRow, keys], values });
  return {
    out: swapped ? swapAxes(out) : out,
    lse: { shape: perRow, values: found.lse },
    weights: pairs(found.weights),
    ...Object.fromEntries(Object.entries(stages).map(([name, values]) => [`stage.${name}`, pairs(values)])),
  };
}

function headsFirst(array, plain, swapped) {
  if (plain) return { shape: [1, ...array.shape], values: array.values };
  return swapped ? swapAxes(array) : array;
}

function broadcast(shapes) {
  const length = Math.max(...shapes.map((shape) => shape.length));
  return Array.from({ length }, (_, axis) => {
    const sizes = shapes.map((shape) => shape[axis - length + shape.length] ?? 1);
    return sizes.find((size) => size !== 1) ?? 1;
  });
}

function softmax(row, sink) {
  const top = row.reduce((a, b) => (Number.isNaN(b) || b > a ? b : a), sink);
  if (top === -Infinity) return { weights: row.map(() => 0), lse: -Infinity };
  const powers = row.map((score) => Math.exp(score - top));
  const total = powers.reduce((a, b) => a + b, 0) + Math.exp(sink - top);
  return { weights: powers.map((power) => power / total), lse: top + Math.log(total) };
}

function dropped(weights, dropout, inputs, batch, index) {
  if (dropout === null) return weights;
  const seeded = "seed" in dropout;
  const rate = seeded ? Math.round(dropout.rate * 65536) / 65536 : dropout.rate;
  const keep = (j) => (seeded ? drawn(dropout, batch, index, j) : at(inputs[dropout.keep], [...index, j]));
  return weights.map((p, j) => (keep(j) ? p / (1 - rate) : 0));
}

// Whether a seed keeps a pair: its 16-bit lane of the block (query, key div 4), under the key of the item and the head.
function drawn({ rate, seed, origin }, batch, index, j) {
  const items = index.slice(0, batch.length);
  const item = items.reduce((total, place, axis) => total * batch[axis] + place, 0);
  const [h, i] = index.slice(-2);
  const own = Array.isArray(seed) ? at(fromLists(seed), items) : seed;
  const words = [own % 2 ** 32, Math.floor(own / 2 ** 32)];
  const key = threefry(words, [item + origin[0], h + origin[1]]);
  const column = j + origin[3];
  const word = threefry(key, [i + origin[2], Math.floor(column / 4)])[Math.floor((column % 4) / 2)];
  return (column % 2 ? word >>> 16 : word & 0xffff) >= Math.round(rate * 65536);
}

// Threefry-2x32 with 20 rounds.
function threefry([k0, k1], [c0, c1]) {
  const schedule = [k0, k1, k0 ^ k1 ^ 0x1bd11bda];
  let [x, y] = [(c0 + k0) >>> 0, (c1 + k1) >>> 0];
  for (let round = 0; round < 20; round++) {
    const turn = [13, 15, 26, 6, 17, 29, 16, 24][round % 8];
    x = (x + y) >>> 0;
    y = (((y << turn) | (y >>> (32 - turn))) ^ x) >>> 0;
    if (round % 4 === 3) {
      const step = (round + 1) / 4;
      x = (x + schedule[step % 3]) >>> 0;
      y = (y + schedule[(step + 1) % 3] + step) >>> 0;
    }
  }
  return [x, y];
}

// ---- Packed sequences, and merging ----------------------------------------------------------------------------------

// A call a sequence. Rows beyond the last offset see nothing.
function packed(inputs, parameters) {
  const { query_offsets: queries, key_offsets: keys, query_positions: first, dropout } = parameters;
  const parts = queries.slice(1).map((_, n) => {
    const [rows, columns] = [queries, keys].map((offsets) => [offsets[n], offsets[n + 1]]);
    const own = { ...inputs, query: cut(inputs.query, 0, rows) };
    for (const name of ["key", "value"]) own[name] = cut(inputs[name], 0, columns);
    for (const name of ["mask", "bias", "keep"]) {
      if (name in inputs) own[name] = cut(cut(inputs[name], inputs[name].shape.length - 2, rows), -1, columns);
    }
    const query_positions = Array.isArray(first) ? first[n] : first;
    const seed = dropout !== null && { ...dropout, origin: [0, 0, rows[0], columns[0]] };
    const found = attention(own, { ...parameters, query_positions, dropout: seed || null });
    return { rows, columns, found };
  });
  const [total, heads] = inputs.query.shape;
  const [totalKeys, , columns] = inputs.value.shape;
  const sinks = parameters.sinks === null ? null : inputs[parameters.sinks].values;
  const within = ([start, end], place) => start <= place && place < end;
  const part = (row) => parts.find(({ rows }) => within(rows, row));
  const pick = (name, row, other, index) => (part(row) ? at(part(row).found[name], index(row - part(row).rows[0])) : other);
  return {
    out: filled([total, heads, columns], ([row, h, c]) => pick("out", row, 0, (i) => [i, h, c])),
    lse: filled([heads, total], ([h, row]) => pick("lse", row, sinks?.[h] ?? -Infinity, (i) => [h, i])),
    weights: filled([heads, total, totalKeys], ([h, row, j]) =>
      part(row) && within(part(row).columns, j) ? pick("weights", row, 0, (i) => [h, i, j - part(row).columns[0]]) : 0,
    ),
  };
}

function cut(array, axis, [start, end]) {
  const along = axis < 0 ? array.shape.length + axis : axis;
  const shape = array.shape.map((size, n) => (n === along ? end - start : size));
  return filled(shape, (index) => at(array, index.map((place, n) => (n === along ? place + start : place))));
}

function merge(inputs) {
  const outs = Object.keys(inputs).filter((name) => name.startsWith("outs."));
  const parts = outs.map((name) => ({ out: inputs[name], lse: inputs[name.replace("outs", "lses")] }));
  const { shape } = parts[0].out;
  const row = (index) => softmax(parts.map((part) => at(part.lse, index)), -Infinity);
  return {
    lse: filled(shape.slice(0, -1), (index) => row(index).lse),
    out: filled(shape, (index) =>
      row(index.slice(0, -1)).weights.reduce((sum, p, n) => sum + (p === 0 ? 0 : p * at(parts[n].out, index)), 0),
    ),
  };
}

// ---- Rotary embedding -----------------------------------------------------------------------------------------------

function rotary({ x }, parameters) {
  const { positions, interleaved, layout } = parameters;
  const depth = x.shape.at(-1);
  const dim = parameters.dim ?? depth;
  const rowAxis = layout === "BLHD" && x.shape.length > 2 ? x.shape.length - 3 : x.shape.length - 2;
  const given = Array.isArray(positions) ? fromLists(positions) : null;
  const out = filled(x.shape, (index) => {
    const d = index.at(-1);
    if (d >= dim) return at(x, index);
    const row = index[rowAxis];
    const batch = index.slice(0, Math.max(x.shape.length - 3, 0));
    const position = given === null ? positions + row : at(given, given.shape.length > 1 ? [...batch, row] : [row]);
    const [pair, second] = interleaved ? [Math.floor(d / 2), d % 2] : [d % (dim / 2), Math.floor(d / (dim / 2))];
    const places = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + dim / 2];
    const [a, b] = places.map((place) => at(x, [...index.slice(0, -1), place]));
    const [f, factor] = frequency(parameters, pair, dim);
    const [cos, sin] = [factor * Math.cos(position * f), factor * Math.sin(position * f)];
    return second ? b * cos + a * sin : a * cos - b * sin;
  });
  return { out };
}

// The radians a position of a pair, and what cosine and sine are multiplied with.
function frequency({ base, scaling }, pair, dim) {
  const plain = base ** ((-2 * pair) / dim);
  if (scaling === null) return [plain, 1];
  if (!(scaling.rule in SCALINGS)) throw new Unknown(`scaling ${scaling.rule}`);
  return SCALINGS[scaling.rule](scaling, plain, pair, base, dim);
}

const clipped = (number) => Math.min(Math.max(number, 0), 1);

const SCALINGS = {
  linear: ({ factor }, plain) => [plain / factor, 1],
  ntk: ({ alpha }, plain, pair, base, dim) => [(base * alpha ** (dim / (dim - 2))) ** ((-2 * pair) / dim), 1],
  longrope: ({ factors, factor, original_length: length }, plain, pair) => [
    plain / factors[pair],
    Math.sqrt(1 + Math.log(factor) / Math.log(length)),
  ],
  llama3: ({ factor, original_length: length, ...range }, plain) => {
    const turns = (length * plain) / (2 * Math.PI);
    const { low_frequency_factor: low, high_frequency_factor: high } = range;
    const kept = clipped((turns - low) / (high - low));
    return [kept * plain + ((1 - kept) * plain) / factor, 1];
  },
  yarn: ({ factor, original_length: length, beta_fast, beta_slow, truncate }, plain, pair, base, dim) => {
    const turning = (times) => (dim * Math.log(length / (2 * Math.PI * times))) / (2 * Math.log(base));
    const ends = [turning(beta_fast), turning(beta_slow)];
    const [first, last] = truncate ? [Math.floor(ends[0]), Math.ceil(ends[1])] : ends;
    const [low, high] = [Math.max(first, 0), Math.min(last, dim - 1)];
    const kept = 1 - clipped((pair - low) / Math.max(high - low, 0.001));
    return [kept * plain + ((1 - kept) * plain) / factor, 1 + 0.1 * Math.log(factor)];
  },
};

const OPS = { attention, packed, merge, rotary };

// ---- The verdict ----------------------------------------------------------------------------------------------------

function within(answer, truth, tolerance) {
  if (answer.shape.join() !== truth.shape.join()) return false;
  return truth.values.every((want, i) => {
    const got = answer.values[i];
    if (Object.is(got, want) || got === want || (Number.isNaN(got) && Number.isNaN(want))) return true;
    return Number.isFinite(got) && Number.isFinite(want) && Math.abs(got - want) <= tolerance;
  });
}

function toleranceOf(truth, worst, dtype) {
  const largest = truth.values.reduce((a, b) => (Number.isFinite(b) ? Math.max(a, Math.abs(b)) : a), 0);
  return 4 * (worst[dtype] ?? 0) + 4 * EPSILON[dtype] * largest;
}

// Every output of the case in the narrowest of its dtypes that JavaScript computes in: float64.
function check(group, test) {
  const tensor = (name) => group.tensors[name];
  const named = (keys) => Object.fromEntries(Object.entries(keys).map(([name, key]) => [name, tensor(key)]));
  const answer = OPS[test.op](named(test.inputs), test.parameters);
  const dtype = test.dtypes.includes("float64") ? "float64" : test.dtypes[0];
  const asked = Object.keys(test.expected).filter((name) => name in answer);
  const failing = asked.filter((name) => {
    const truth = tensor(test.expected[name].truth);
    return !within(answer[name], truth, toleranceOf(truth, group.pytorch_error, dtype));
  });
  const matches = Object.entries(test.variants).filter(([, keys]) =>
    Object.entries(named(keys)).every(
      ([name, truth]) => name in answer && within(answer[name], truth, toleranceOf(truth, group.pytorch_error, dtype)),
    ),
  );
  return { outputs: asked.length, failing, matches: failing.length ? matches.map(([name]) => name) : [] };
}

// The references that PyTorch gave in narrow dtypes, decoded, are as far from the truth as the file says.
function checkDecoding(group, test) {
  let count = 0;
  for (const [name, expected] of Object.entries(test.expected)) {
    const truth = group.tensors[expected.truth];
    for (const [dtype, key] of Object.entries(expected.pytorch)) {
      const found = group.tensors[key].values;
      const apart = found.map((got, i) => (Number.isFinite(got) ? Math.abs(got - truth.values[i]) : 0));
      const far = apart.reduce((a, b) => (Number.isFinite(b) ? Math.max(a, b) : a), 0);
      if (Math.abs(far - expected.error[dtype]) > 0.01 * expected.error[dtype]) {
        refuse(`${test.id}: ${name} in ${dtype} is ${far} off, the file says ${expected.error[dtype]}`);
      }
      count += 1;
    }
  }
  return count;
}

function main() {
  const here = dirname(fileURLToPath(import.meta.url));
  const folder = process.argv[2] ?? join(here, "..", "conformance", "vectors");
  const counts = { cases: 0, passed: 0, failed: 0, skipped: 0, outputs: 0, decoded: 0 };
  const skipped = {};
  for (const entry of readJson(folder, "index.json").groups) {
    const group = readGroup(folder, entry);
    for (const test of group.cases) {
      counts.cases += 1;
      counts.decoded += checkDecoding(group, test);
      const reason = test.op in OPS ? (test.valid ? null : "calls that must raise") : `op ${test.op}`;
      if (reason !== null) {
        counts.skipped += 1;
        skipped[reason] = (skipped[reason] ?? 0) + 1;
        continue;
      }
      const { outputs, failing, matches } = check(group, test);
      counts.outputs += outputs;
      counts[failing.length ? "failed" : "passed"] += 1;
      if (failing.length) console.log(`fail ${test.id}: ${failing.join(", ")}; matches ${matches.join(", ") || "nothing"}`);
    }
  }
  const { cases, passed, failed, outputs, decoded } = counts;
  console.log(`${cases} cases: ${passed} pass, ${failed} fail (${outputs} outputs), ${counts.skipped} not asked`);
  for (const [reason, count] of Object.entries(skipped)) console.log(`  not asked: ${count} of ${reason}`);
  console.log(`${decoded} tensors of PyTorch decoded, as far from the truth as the files say`);
  process.exitCode = failed ? 1 : 0;
}

main();
