/** The latest numbers of a state as a small line. */

const WIDTH = 72;
const HEIGHT = 18;

export function sparkPath(numbers: number[], width = WIDTH, height = HEIGHT): string {
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const step = width / Math.max(1, numbers.length - 1);
  const inner = height - 4;
  const y = (value: number) =>
    high === low ? height / 2 : 2 + inner - ((value - low) / (high - low)) * inner;
  return numbers
    .map((value, index) => `${index ? "L" : "M"}${(index * step).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
}

interface SparklineProps {
  numbers: number[];
  width?: number;
  height?: number;
}

export function Sparkline({ numbers, width = WIDTH, height = HEIGHT }: SparklineProps) {
  return (
    <svg
      class="sparkline"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      aria-hidden="true"
    >
      <path d={sparkPath(numbers, width, height)} />
    </svg>
  );
}
