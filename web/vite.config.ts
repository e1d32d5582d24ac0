import preact from "@preact/preset-vite";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [preact()],
  base: "./", // works under any sub-path
  build: {
    outDir: "../src/jetbus/radar/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the content security policy allows no inline scripts or styles
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  test: { include: ["tests/**/*.test.ts"] },
});
