/* Lines of the lineage graph: each line on a lane, which is free again when its branch ends. */

/** Give out lanes; one is free again when the lines on it have ended. */
class Lanes {
  constructor() {
    this.busyUntil = [];
  }

  take(from, until) {
    let lane = this.busyUntil.findIndex((end) => end < from);
    if (lane < 0) lane = this.busyUntil.length;
    this.busyUntil[lane] = until;
    return lane;
  }

  hold(lane, until) {
    this.busyUntil[lane] = Math.max(this.busyUntil[lane] ?? -1, until);
  }
}

/**
 * Lay out lines that stand in an order in which parents come first.
 *
 * A line goes down the lane of its parent and leaves it where the child stands, so that many branches
 * of one parent take one lane in turn; the last one goes on where the parent was.
 *
 * @param parents for each line the places of its parents, in order
 * @returns {{lanes: number[], edges: {from, to, lane, second}[], width: number}}
 */
function layOut(parents) {
  const children = parents.map(() => [[], []]);
  parents.forEach((list, at) => list.forEach((parent, nth) => children[parent][nth ? 1 : 0].push(at)));
  const lanes = [];
  const edges = [];
  const given = new Lanes();
  parents.forEach((list, at) => {
    const [first, second] = children[at];
    const lane = (lanes[at] ??= given.take(at, at));
    const heir = first.at(-1) ?? Infinity;
    const ownSecond = second.filter((child) => child < heir);
    given.hold(lane, Math.max(at, ...first, ...ownSecond));
    for (const child of first) {
      // Taken in the order of the lines: a branch is laid out after those above it have ended.
      if (child === heir) lanes[child] = lane;
      edges.push({ from: at, to: child, lane, second: false });
    }
    const later = second.filter((child) => child >= heir);
    const side = later.length ? given.take(at + 1, Math.max(...later)) : lane;
    for (const child of second) edges.push({ from: at, to: child, lane: child < heir ? lane : side, second: true });
  });
  return { lanes, edges, width: given.busyUntil.length };
}

/** Return the path of a line that goes down a lane and bends where it leaves and arrives. */
function pathOf(edge, x, y) {
  const [x1, y1, x2, y2] = [x(edge.fromLane), y(edge.from), x(edge.toLane), y(edge.to)];
  const way = x(edge.lane);
  const bend = Math.min(22, (y2 - y1) / 2);
  let path = `M${x1} ${y1}`;
  if (way !== x1) path += `C${x1} ${y1 + bend} ${way} ${y1} ${way} ${y1 + bend}`;
  path += `V${way === x2 ? y2 : y2 - bend}`;
  if (way !== x2) path += `C${way} ${y2} ${x2} ${y2 - bend} ${x2} ${y2}`;
  return path;
}
