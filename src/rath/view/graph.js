/* Lines of the lineage graph: each session on a lane, a branch on a lane of its own. */

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
 * Lay out sessions that stand in an order in which parents come first.
 *
 * @param parents for each session the places of its parents, in order
 * @returns {{lanes: number[], edges: {from, to, lane, second}[], width: number}}
 */
function layOut(parents) {
  const children = parents.map(() => []);
  parents.forEach((list, at) => list.forEach((parent, nth) => children[parent].push([at, nth])));
  const lanes = [];
  const edges = [];
  const given = new Lanes();
  parents.forEach((list, at) => {
    const lane = (lanes[at] ??= given.take(at, at));
    given.hold(lane, at);
    let isPassedOn = false;
    for (const [child, nth] of children[at]) {
      if (nth === 0) {
        lanes[child] = isPassedOn ? given.take(at + 1, child) : lane;
        if (!isPassedOn) given.hold(lane, child);
        edges.push({ from: at, to: child, lane: lanes[child], second: false });
        isPassedOn = true;
      }
    }
    for (const [child, nth] of children[at]) {
      if (nth === 0) continue;
      const way = isPassedOn ? given.take(at + 1, child) : lane;
      if (!isPassedOn) given.hold(lane, child);
      edges.push({ from: at, to: child, lane: way, second: true });
      isPassedOn = true;
    }
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
