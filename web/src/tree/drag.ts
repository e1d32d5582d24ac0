/** Dragging elements from the tree onto a board. */

/** The type of what is dragged; the path is there as plain text, too, for other programs. */
const PATH_TYPE = "application/x-jet-path";

export function startDrag(event: DragEvent, path: string): void {
  event.dataTransfer?.setData(PATH_TYPE, path);
  event.dataTransfer?.setData("text/plain", path);
  if (event.dataTransfer) event.dataTransfer.effectAllowed = "copy";
}

/** Return whether an element of the bus is being dragged. While it is, browsers tell the type only. */
export function isPathDrag(event: DragEvent): boolean {
  return event.dataTransfer?.types.includes(PATH_TYPE) ?? false;
}

export function readDrag(event: DragEvent): string {
  return event.dataTransfer?.getData(PATH_TYPE) ?? "";
}
