/** The arc of a gauge: 240 degrees in a box of 200 by 140, open below. */

const CENTRE = [100, 84] as const;
const RADIUS = 72;
const FROM_DEG = 210;
const SWEEP_DEG = 240;

/** Return the point of the arc at a part of its length, from 0 to 1. */
export function gaugePoint(part: number, inset = 0): [x: number, y: number] {
  const angle = ((FROM_DEG - part * SWEEP_DEG) * Math.PI) / 180;
  const radius = RADIUS - inset;
  return [CENTRE[0] + radius * Math.cos(angle), CENTRE[1] - radius * Math.sin(angle)];
}

/** Return the path of an arc between two parts. */
export function gaugeArc(from: number, to: number, inset = 0): string {
  const [x0, y0] = gaugePoint(from, inset);
  const [x1, y1] = gaugePoint(to, inset);
  const isLarge = (to - from) * SWEEP_DEG > 180 ? 1 : 0;
  const radius = RADIUS - inset;
  return `M${x0.toFixed(1)} ${y0.toFixed(1)}A${radius} ${radius} 0 ${isLarge} 1 ${x1.toFixed(1)} ${y1.toFixed(1)}`;
}
