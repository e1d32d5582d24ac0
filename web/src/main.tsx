import { render } from "preact";
import { App } from "./app";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import "./tree/tree.css";
import "./detail/detail.css";
import "./boards/board.css";
import "./palette/palette.css";
import "./time/time.css";

render(<App />, document.getElementById("app") as HTMLElement);
