from .exercises import Case as Case, CheckResult as CheckResult, check as check, exercise_ids as exercise_ids, same as same
from .plotting import DIVERGING as DIVERGING, INK as INK, PALETTE as PALETTE, PAPER as PAPER, SEQUENTIAL as SEQUENTIAL, contrast_ratio as contrast_ratio, draw_boxes as draw_boxes, plot_attention as plot_attention, plot_curves as plot_curves, plot_heatmap as plot_heatmap, use_course_style as use_course_style
from .runtime import count_parameters as count_parameters, default_device as default_device, seed_everything as seed_everything
