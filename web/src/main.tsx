import { render } from "preact";
import { App } from "./app";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import "./tree.css";
import "./detail.css";
import "./board.css";
import "./palette.css";
import "./time.css";

render(<App />, document.getElementById("app") as HTMLElement);
